"""How much code there is, folder by folder, so that growth is seen."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parent.parent


def main() -> None:
    """Print non-blank lines by folder, and the longest files."""
    counts = {
        file: sum(bool(line.strip()) for line in file.read_text(encoding="utf-8").splitlines())
        for folder in ("src", "tests", "benchmarks", "tools")
        for suffix in ("py", "js", "css", "html", "c", "h")
        for file in (ROOT / folder).rglob(f"*.{suffix}")
        if "egg-info" not in str(file)
    }
    folders: dict[str, int] = {}
    for file, lines in counts.items():
        parts = file.relative_to(ROOT).parts
        folder = "/".join(parts[:3] if parts[0] == "src" and len(parts) > 3 else parts[:1])
        folders[folder] = folders.get(folder, 0) + lines
    print("lines: " + ", ".join(f"{folder} {lines}" for folder, lines in sorted(folders.items())))
    longest = sorted(counts.items(), key=lambda item: -item[1])[:3]
    print("longest: " + ", ".join(f"{file.relative_to(ROOT)} {lines}" for file, lines in longest))


if __name__ == "__main__":
    main()
