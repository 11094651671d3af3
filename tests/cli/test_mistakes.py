"""The command line: one sentence for every mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.cli import PRICE_KEYS, RING, SIZE, fine, is_one_sentence, mistake, process
from tests.helpers.command import run_choreo

JOB = ["--cluster", "hgx-h100", "--gpus", "8", "--seq", "512"]
MST = ["broadcast", "-a", "mst", "-p", "4"]

MISTAKES: list[tuple[list[str], str]] = [
    # commands
    (["prvoe"], "there is no command 'prvoe'; did you mean 'prove' or"),
    ([""], "there is no command ''"),
    (["--nonsense"], "no such option '--nonsense'; see choreo --help"),
    (["--json", "list"], "no such option '--json'; it goes after a command: choreo COMMAND --json; see choreo --help"),
    (["calibrate", "--device", "tpu"], "--device is cpu or cuda, not 'tpu'"),
    (
        ["price", "all_reduce", "-p", "8", *SIZE, "--cores", "2"],
        "cores goes with ports 'read', not 'one'; leave",
    ),
    (["help"], "there is no command 'help'; choreo --help lists the commands, and choreo COMMAND --help"),
    (["nccl", "all_reduce"], "there is no command 'nccl'; choreo simulate --library nccl, choreo tune and"),
    (["list", "--nonsense"], "no such option '--nonsense'; see choreo list --help"),
    (
        ["plan", "--slow-link", "0-1=2"],
        "'--slow-link'; choreo simulate, bound, synthesize and sweep take it",
    ),
    (["synthesize", "all_reduce", "--html", "x.html"], "'--html'; choreo show, simulate, plan and train take it; see"),
    (["bench", "all_reduce", "-n", "2", "-r", "5"], "all_reduce has no root, but root=5 was given; leave it out"),
    (["bench", "all_reduce", "-n", "2", "-f", "0"], "the factor between sizes must be more than 1, not 0"),
    (["price", "all_reduce", "--svg", "x.svg"], "'--svg'; choreo show takes it; see choreo price"),
    (["show", "--step"], "no such option '--step'; did you mean"),
    (["bench", "all_reduce", "-g8"], "'-g'; -g of nccl-tests is --ranks here; see choreo bench --help"),
    (["run", "--nproc_per_node=2", "x.py"], "'--nproc_per_node'; --nproc_per_node of torchrun is --ranks here; see"),
    (["plan", "--tensor-model-parallel-size", "8"], "of Megatron-LM is --tp here; see choreo plan --help"),
    (["list", "-g"], "no such option '-g'; see choreo list --help"),
    (["trace", "info", "--step", "2"], "'--step'; choreo trace record takes it; see choreo trace info --help"),
    (["prove", "--rank", "4"], "--rank"),
    (
        ["prove", "all_reduce", "ring", "4"],
        "(ring 4); write --algorithm ring --ranks 4; see choreo prove",
    ),
    (["bound", "all_reduce", "ring(4)", "1M"], "(ring(4) 1M); write --topology 'ring(4)' --size 1M; see choreo bound"),
    (["simulate", "all_reduce", "my.toml"], "extra argument (my.toml); write --topology my.toml; see choreo simulate"),
    (["prove", "all_reduce", "4", "5"], "got unexpected extra arguments (4 5); see choreo prove --help"),
    (["prove", "all_reduce", "nonsense"], "got unexpected extra argument (nonsense); see choreo prove --help"),
    (["prove", "my.py", "-p", "4"], "my.py is not a collective; for a file write --load my.py"),
    (
        ["prove", "all_reduce", "-a", "a b.py", "-p", "4"],
        "a b.py is not an algorithm; for a file write --load 'a b.py'",
    ),
    (["列表"], "there is no command '列表'"),
    # names
    (["list", "allreduce"], "there is no collective or list 'allreduce'; did you mean 'all_reduce'"),
    (["list", "ALL_REDUCE"], "there is no collective or list 'ALL_REDUCE'; did you mean 'all_reduce'?"),
    (["price", "allreduce", "-p", "4", *SIZE], "did you mean 'all_reduce'?"),
    (["show", "allreduce", "-p", "4"], "there is no collective 'allreduce'; did you mean 'all_reduce'?"),
    (["build", "allreduce", "-o", "x.json"], "there is no collective 'allreduce'; did you mean 'all_reduce'?"),
    (["price", "all_reduce", "-a", "tree", "-p", "4", *SIZE], "did you mean 'double_binary_tree'?"),
    (["list", "modles"], "there is no collective or list 'modles'; did you mean 'models'"),
    (["list", ""], "there is no collective or list ''; lists: algorithms, models, "),
    (["list", "foo"], "topologies; collectives: broadcast, "),
    (["list", "two\nlines"], "there is no collective or list 'two\\nlines'"),
    (["list", "😀"], "there is no collective or list '😀'"),
    (["prove", "al_reduce", "-a", "ring", "-p", "4"], "did you mean 'all_reduce'"),
    (
        ["prove", "all_reduce", "-a", "rign", "-p", "4"],
        "there is no all_reduce algorithm 'rign'; did you mean 'ring' or 'bine'?",
    ),
    (["prove", "all_reduce", "-a", "", "-p", "4"], "there is no all_reduce algorithm ''"),
    (
        ["simulate", "all_reduce", "-a", "ring,swing", "-t", "ring(4)", *SIZE],
        "'ring,swing' is not an algorithm; give each by itself: --algorithm ring --algorithm swing",
    ),
    (["plan", "page.html"], "see choreo list models, or give a config.json of Hugging Face or its folder"),
    (
        ["simulate", "all_reduce", "-t", "page.html", *SIZE],
        "see choreo list topologies, or give a .json, .toml, .xml",
    ),
    (["prove", "--all", "-a", "rign", "-p", "4"], "'ring'"),
    (["price", "all_reduce", "-a", "rign", "-p", "4", *SIZE], "did you mean 'ring' or 'bine'?"),
    (["show", "all_reduce", "-a", "rign", "-p", "4"], "did you mean 'ring' or 'bine'?"),
    (["build", "all_reduce", "-a", "rign", "-p", "4", "-o", "x.json"], "did you mean 'ring' or 'bine'?"),
    (["prove", "all_to_all", "-a", "ring", "-p", "4"], "ring does not do all_to_all, only "),
    # two documents on stdout
    (["show", *RING, "--svg", "-", "--html", "-"], "--svg - and --html - both want stdout; give the picture a file"),
    (["simulate", *RING, "-t", "ring(4)", *SIZE, "--html", "-", "--json"], "--json and --html - both want stdout"),
    (["plan", "llama3-8b", *JOB, "--global-batch", "8", "--html", "-", "--json"], "--json and --html - both want"),
    (["sweep", "price", *RING, *SIZE, "--plot", "-", "--json"], "--json and --plot - both want stdout"),
    # what is missing
    (["prove"], "say what to prove: COLLECTIVE and --algorithm, --schedule FILE, or --all"),
    (["prove", "all_reduce"], "say how many ranks: --ranks 8"),
    (["prove", "--all"], "say how many ranks: --ranks 8"),
    (["price"], "say what to price: COLLECTIVE, or --schedule FILE"),
    (["price", *SIZE], "say what to price: COLLECTIVE, or --schedule FILE"),
    (["price", "all_reduce", *SIZE], "say how many ranks: --ranks P"),
    (["price", *RING], "give either --size S"),
    (["show"], "say which schedule: COLLECTIVE and one --algorithm, or --schedule FILE"),
    (["show", "all_reduce", "-p", "4"], "say which schedule"),
    (["show", "all_reduce", "-a", "ring"], "say how many ranks"),
    (["build", *RING], "missing option '--output' / '-o'"),
    (["build", "-o", "x.json"], "say which schedule"),
    (["prove", *RING[:-1]], "requires an argument"),
    # ranks
    (["prove", "all_reduce", "-a", "ring", "-p", "0"], "there must be at least 1"),
    (["prove", "all_reduce", "-a", "ring", "-p", "-1"], "'-1' is not a number of ranks"),
    (["prove", "all_reduce", "-a", "ring", "-p", ""], "'' is not a number of ranks; write 8, 2..33 or 2,4,8"),
    (["prove", "all_reduce", "-a", "ring", "-p", "nan"], "is not a number of ranks"),
    (["prove", "all_reduce", "-a", "ring", "-p", "٤"], "is not a number of ranks"),
    (["prove", "--all", "-p", "33..2"], "33 is more than 2; swap them"),
    (["prove", "--all", "-p", "0..4"], "there must be at least 1"),
    (["prove", "all_reduce", "-a", "ring", "-p", "1" + "0" * 30], "is not a number of ranks"),
    (["price", "all_reduce", "-p", "0", *SIZE], "ranks must be a whole number from 1 to 4194304, not 0"),
    (["price", "all_reduce", "-p", "-3", *SIZE], "from 1 to 4194304, not -3"),
    (["price", "all_reduce", "-p", "2..4", *SIZE], "'2..4' is not a valid integer"),
    (["price", "all_reduce", "-p", "eight", *SIZE], "'eight' is not a valid integer"),
    (["price", "all_reduce", "-p", "", *SIZE], "is not a valid integer"),
    (["price", "all_reduce", "-p", "4.0", *SIZE], "is not a valid integer"),
    (["show", "all_reduce", "-a", "ring", "-p", "0"], "from 1 to 4194304, not 0"),
    (["build", "all_reduce", "-a", "ring", "-p", "5000000", "-o", "x.json"], "from 1 to 4194304, not 5000000"),
    # names that no file can have
    (["plan", "a" * 300, "--cluster", "dgx-1", "--global-batch", "8"], "there is no model 'aaa"),
    (["trace", "info", "."], ".: no files there"),
    (["trace", "info", "a" * 300], "is neither a file nor a folder, and no file name starts with it"),
    (["run", "-n", "2", "a" * 300], "there is no such script"),
    (["prove", "all_gather", "--load", "a" * 300, "-p", "4"], "there is no such file to load algorithms from"),
    (["record", "sql", "--store", "a" * 300, "select 1"], "there is no store in aaa"),
    # roots
    (["prove", *MST, "--root", "4"], "root 4 is not a rank: with 4 ranks it must be 0 to 3"),
    (["prove", *MST, "--root", "-1"], "root -1 is not a rank"),
    (["price", *MST, "--root", "9", *SIZE], "root 9 is not a rank"),
    (["price", "broadcast", "-p", "4", "--root", "9", *SIZE], "root 9 is not a rank"),
    (["show", *MST, "--root", "4"], "root 4 is not a rank"),
    (["prove", *MST, "--root", "first"], "'first' is not a valid integer"),
    (["prove", *RING, "--root", "0"], "all_reduce has no root, but root=0 was given; leave it out"),
    (["price", "all_reduce", "-p", "4", "--root", "0", *SIZE], "all_reduce has no root"),
    # segments
    (["prove", *RING, "--segments", "0"], "segments must be a whole number of at least 1, not 0"),
    (["prove", *RING, "--segments", "-2"], "at least 1, not -2"),
    (["prove", *RING, "--segments", "many"], "'many' is not a valid integer"),
    # axes
    (["prove", "all_reduce", "-a", "hierarchical", "-p", "8", "--axes", "3x3"], "axes 3 x 3 make 9 ranks, not 8"),
    (["price", "all_reduce", "-p", "8", "--axes", "3x3", *SIZE], "axes 3 x 3 make 9 ranks, not 8"),
    (["prove", "all_reduce", "-a", "hierarchical", "-p", "8", "--axes", ""], "'' are not axes; write sizes"),
    (["prove", "all_reduce", "-a", "hierarchical", "-p", "8", "--axes", "2×4"], "are not axes"),
    (["prove", "all_reduce", "-a", "hierarchical", "-p", "8", "--axes", "2x-4"], "are not axes"),
    (
        ["prove", "all_reduce", "-a", "hierarchical", "-p", "8", "--axes", "0x8"],
        "the size of an axis must be a whole number of at least 1, not 0",
    ),
    (["prove", "all_reduce", "-a", "hierarchical", "-p", "8", "--axes", "2x4:ring"], "2 sizes but 1 name;"),
    (["prove", "all_reduce", "-a", "hierarchical", "-p", "8", "--axes", "2x4:rign,ring"], "did you mean 'ring'"),
    (["prove", "all_reduce", "-a", "hierarchical", "-p", "8", "--axes", "2x4:,"], "no algorithm to run along an axis"),
    (["prove", "all_gather", "-a", "hierarchical", "--axes", "2x4:mst,linear"], "does no all_gather along an axis"),
    (["prove", *RING, "--axes", "2x2"], "all_reduce by ring takes no axes; leave it out"),
    (["prove", *RING, "--rotate"], "all_reduce by ring takes no rotate; leave it out"),
    (["show", *RING, "--axes", "2x2", "--rotate"], "takes no axes; leave it out"),
    (["price", "scatter", "-p", "8", "--axes", "2x4", *SIZE], "axes"),
    (["prove", "scatter", "-p", "8", "--axes", "2x4"], "axes"),
    (["price", "all_to_all", "-p", "8", "--rotate", *SIZE], "rotate"),
    # sizes, times, bandwidths
    (["price", *RING, "--size", ""], "'' is not a size; write 8, 4KiB, 1MB or 64MiB"),
    (["price", *RING, "--size", "-1"], "'-1' is not a size"),
    (["price", *RING, "--size", "big"], "'big' is not a size"),
    (["price", *RING, "--size", "nan"], "'nan' is not a size"),
    (["price", *RING, "--size", "inf"], "'inf' is not a size"),
    (["price", *RING, "--size", "4Kb/s"], "unit 'Kb/s' is unknown"),
    (["price", *RING, "--size", "1.5"], "not a whole number of bytes"),
    (["price", *RING, "--size", "1e30"], "8 EiB or more"),
    (["price", *RING, "--size", "1e999"], "8 EiB or more"),
    (["price", *RING, "--size", "八"], "is not a size"),
    (["price", *RING, "--size", "9" * 5000], "is not a size"),
    (["price", *RING, "--sweep", "8"], "is not a range of sizes; write FROM:TO, like 8:1GiB"),
    (["price", *RING, "--sweep", "1GiB:8"], "swap them"),
    (["price", *RING, "--sweep", ""], "is not a range of sizes"),
    (["price", *RING, "--sweep", "8:nan"], "'nan' is not a size"),
    (["price", *RING, "--sweep", "-8:8"], "'-8' is not a size"),
    (["price", *RING, *SIZE, "--alpha", "5GB"], "unit 'GB' is unknown"),
    (["price", "all_reduce", "-n"], "requires an argument; see choreo price --help"),
    (["price", "r.json"], "r.json is not a collective; for a file write --schedule r.json"),
    (["simulate", "r.json"], "r.json is not a collective; for a file write --schedule r.json"),
    (["run", "-n", "0", "script.py"], "-n must be at least 1, not 0"),
    (["run", "-n", "4", "--nodes", "0", "script.py"], "--nodes must be at least 1, not 0"),
    (["price", *RING, *SIZE, "--gamma", "5"], "'5' is not a gamma: its unit is missing; write 5GB/s for a rate"),
    (["price", *RING, *SIZE, "--alpha", "-5us"], "is not a time"),
    (["price", *RING, *SIZE, "--alpha", "nan"], "is not a time"),
    (["price", *RING, *SIZE, "--alpha", ""], "is not a time"),
    (
        ["price", *RING, *SIZE, "--bandwidth", "5us"],
        "unit 'us' is unknown; write 50GB/s for bytes or 400Gbit/s for bits",
    ),
    (["price", *RING, *SIZE, "--bandwidth", "0"], "it must be more than zero"),
    (["price", *RING, *SIZE, "--bandwidth", "-1GB/s"], "is not a bandwidth"),
    (["price", *RING, *SIZE, "--bandwidth", "1e308GB/s"], "bandwidth"),
    (["price", *RING, *SIZE, "--gamma", "-1"], "is not a gamma"),
    (["price", *RING, *SIZE, "--gamma", "fast"], "is not a gamma"),
    (["price", *RING, *SIZE, "--gamma", "1e-11s"], "write seconds per byte, 1e-11, or a rate of reduction"),
    (["price", *RING, *SIZE, "--ports", "two"], "'two' is not one of 'one', 'all'"),
    # options that contradict one another
    (["price", *RING, *SIZE, "--sweep", "8:16"], "give either --size S for a table, or --sweep"),
    # files
    (["prove", "--schedule", "nowhere.json"], "nowhere.json cannot be read: No such file or directory"),
    (["prove", "--schedule", ""], "Is a directory"),
    (["prove", "--schedule", "."], "."),
    (["price", "--schedule", "nowhere.npz", *SIZE], "nowhere.npz cannot be read: No such file or directory"),
    (["show", "--schedule", "nowhere.json"], "nowhere.json cannot be read: No such file or directory"),
    (["build", *RING, "-o", "x"], "x: a schedule is written to a file that ends in .json, .npz or .xml"),
    (["build", *RING, "-o", ""], "--output needs the name of a file"),
    (["build", *RING, "-o", "."], ".: cannot be written: Is a directory"),
    (["build", *RING, "-o", "x.txt"], "x.txt: a schedule is written to a file that ends in .json, .npz or .xml"),
    (["build", "all_reduce", "-a", "all", "-p", "4", "-o", "x.json"], "--algorithm all is many schedules"),
    (["build", *RING, "--format", "mscclpp", "-o", "x.xml"], "x.xml: a file in the format mscclpp ends in .json"),
    (["build", *RING, "-o", "no/where.json"], "no/where.json: cannot be written: No such file or directory"),
    (["show", *RING, "--svg", "no/where.svg"], "no/where.svg: cannot be written: No such file or directory"),
    (["show", *RING, "--html", "."], "goes to a file that ends in .html, or to - for stdout"),
    (["simulate", *RING[:3], "-t", "ring(4)", *SIZE, "--trace", "-"], "--trace needs the name of a file, not -"),
    (
        ["synthesize", "all_reduce", "-t", "ring(4)", *SIZE, "-o", "s.txt"],
        "s.txt: a schedule is written to a file",
    ),
    (["show", *RING, "--svg", ""], "goes to a file that ends in .svg"),
    (["show", *RING, "--svg", "x" * 300 + ".svg"], "cannot be written: File name too long"),
    # too much to show
    (["show", "all_reduce", "-a", "ring", "-p", "500", "--svg", "x.svg"], "shows at most"),
    (["show", "all_reduce", "-a", "ring", "-p", "5000", "--html", "x.html"], "shows at most"),
    (["show", "all_reduce", "-a", "ring", "-p", "500", "--json"], "shows at most"),
    # files of algorithms
    (["list", "--load", "nowhere.py"], "nowhere.py: there is no such file to load algorithms from"),
    (["list", "--load", ""], "there is no such file to load algorithms from"),
    (["list", "--load", "."], ".: there is a folder, not a file to load algorithms from"),
]


@pytest.mark.parametrize(("arguments", "sentence"), MISTAKES, ids=[" ".join(m[0])[:80] for m in MISTAKES])
def test_mistakes(arguments: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert sentence in mistake(*arguments)
    assert list(tmp_path.iterdir()) == []


def test_a_mistake_says_nothing_on_stdout_with_json_either() -> None:
    assert mistake("prove", "all_reduce", "-a", "rign", "-p", "4", "--json") == (
        "there is no all_reduce algorithm 'rign'; did you mean 'ring' or 'bine'?"
    )


@pytest.mark.parametrize("option", ["--ranks", "--axes", "--option", "--root", "--size"])
def test_a_mistake_is_not_repeated_at_full_length(option: str) -> None:
    for value in ("x" * 100_000, "9" * 4000, "ring(4) x " * 1000):
        assert len(mistake("price", "all_reduce", "-p", "4", *SIZE, option, value)) < 1500


@pytest.mark.parametrize(
    "extra",
    [
        ["all_reduce"],
        ["--algorithm", "ring"],
        ["--ranks", "8"],
        ["--root", "0"],
        ["--axes", "2x4"],
        ["--segments", "2"],
        ["--rotate"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("command", [["prove"], ["price", *SIZE], ["show"], ["build", "-o", "copy.json"]])
def test_a_file_already_says_it_all(
    command: list[str], extra: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fine("build", *MST, "-o", "s.json")
    told = mistake(*command, "--schedule", "s.json", *extra)
    assert told == f"--schedule already says which schedule; leave out {extra[0]}"
    assert not Path("copy.json").exists()


def test_a_file_and_everything_contradict_each_other(tmp_path: Path) -> None:
    file = str(tmp_path / "s.json")
    fine("build", *MST, "-o", file)
    assert "--all" in mistake("prove", "--all", "--schedule", file)


NOT_SCHEDULES = {
    "empty": b"",
    "text": b"hello",
    "an empty object": b"{}",
    "a list": b"[1, 2]",
    "binary": bytes(range(256)),
    "a bad archive": b"PK\x03\x04 and so on",
    "wrong json": b'{"collective": "broadcast", "ranks": 3, "steps": [[{"src": 0, "dst": 3, "chunk": 0}]]}',
    "deep": b"[" * 100_000,
}


@pytest.mark.parametrize("content", NOT_SCHEDULES.values(), ids=NOT_SCHEDULES.keys())
@pytest.mark.parametrize("command", [["prove"], ["price", *SIZE], ["show"], ["build", "-o", "copy.json"]])
def test_files_that_are_not_schedules(
    command: list[str], content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("s.json").write_bytes(content)
    assert mistake(*command, "--schedule", "s.json").startswith("s.json: not a schedule: ")
    assert not Path("copy.json").exists()


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "s.json").mkdir()
    told = mistake("prove", "--schedule", str(tmp_path / "s.json"))
    assert str(tmp_path / "s.json") in told
    told = mistake("build", *RING, "-o", str(tmp_path / "s.json"))
    assert told == f"{tmp_path / 's.json'}: cannot be written: Is a directory"


@pytest.mark.parametrize("newline", ["prove --schedule", "list --load", "show all_reduce -a ring -p 4 --svg"])
def test_a_path_of_two_lines_makes_one(newline: str, tmp_path: Path) -> None:
    mistake(*newline.split(), str(tmp_path / "two\nlines" / "file"))


EXTREMES = [
    ["--alpha", "1e308"],
    ["--alpha", "1e300", "--size", "8EiB"],
    ["--alpha", "0"],
    ["--bandwidth", "1e-310"],
    ["--bandwidth", "1e-310", "--size", "0"],
    ["--bandwidth", "1e308"],
    ["--gamma", "5e-324"],
    ["--gamma", "1e308"],
    ["--gamma", "1e-320B/s"],
    ["--size", "0"],
    ["--size", "8e18"],
]


@pytest.mark.parametrize("options", EXTREMES, ids=" ".join)
@pytest.mark.parametrize("form", ["table", "json", "sweep"])
def test_extreme_links_have_a_price_or_are_a_mistake(options: list[str], form: str) -> None:
    """No traceback, and no number in the JSON that is not one."""
    sized = options if "--size" in options else [*options, *SIZE]
    if form == "sweep":
        sized = [*options, "--sweep", "8:1KiB"] if "--size" not in options else ["--sweep", f"0:{options[-1]}"]
    ran = run_choreo("price", "all_reduce", "-p", "4", *sized, *(["--json"] if form == "json" else []))
    if ran.code != 0:
        assert is_one_sentence(ran.code, ran.out, ran.err), ran
    elif form == "json":
        assert isinstance(ran.json, list)
        assert all(
            isinstance(one[name], int | float) for one in ran.json for name in PRICE_KEYS - {"collective", "algorithm"}
        )


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["prove", *RING, "--segments", "1000000000"], "chunks"),
        (["prove", *RING, "--segments", "1" + "0" * 20], "chunks"),
        (["prove", "--all", "-p", "1..999999999"], "ranks"),
        (["price", "all_reduce", "-a", "ring", "-p", "1000000000", *SIZE], "4194304"),
        (["build", *RING[:-1], "1000000", "-o", "x.json"], "2e+12 transfers"),
        (["plan", "gpt2-124m", *JOB, "--global-batch", "9" * 5000], "is not a global batch"),
        (["bound", "all_reduce", "-t", "ring(4)", *SIZE, "--slow-rank", "9" * 5000 + "=2x"], "they are 0 to 3"),
        (["build", "all_reduce", "-a", "hierarchical", "--axes", "1000x1000x1000", "-o", "x.npz"], "4194304"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else value,
)
def test_absurd_numbers_are_refused_before_they_take_memory(
    arguments: list[str], word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = process(*arguments, limit_bytes=3 << 29)
    assert is_one_sentence(ran.returncode, ran.stdout, ran.stderr), ran
    assert word in ran.stderr
    assert "memory" not in ran.stderr.lower()
