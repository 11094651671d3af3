// Elements, and numbers in words, as in `choreo.units`.

export const SVG = "http://www.w3.org/2000/svg";

export function element(name, attributes, parent, words) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (words !== undefined) made.textContent = words;
  if (parent) parent.append(made);
  return made;
}

// Words that name options: browsers break a line between the hyphens of --size.
export function say(words, holder) {
  const parts = words.split(/(\s+)/).map((word) => (word.startsWith("-") ? element("span", { class: "unbroken" }, null, word) : word));
  holder.replaceChildren(...parts);
  return holder;
}

export function shape(name, attributes, parent, words) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (words !== undefined) made.textContent = words;
  if (parent) parent.append(made);
  return made;
}

// To three digits, so that a little less than 1 MB is not 1000 KB.
const roundedToThree = (value) => Number(value.toPrecision(3));

export function threeDigits(exact) {
  const value = roundedToThree(exact);
  if (value === 0) return "0";
  const digits = 2 - Math.floor(Math.log10(Math.abs(value)) + 1e-9);
  return Math.abs(value) < 1e6 && digits < 9 ? value.toFixed(Math.max(0, digits)) : value.toPrecision(3);
}

// The unit for a time, so that all times of one run can share it.
export function timeUnit(time_us) {
  if (time_us >= 1e6) return ["s", 1e6];
  if (time_us >= 1e3) return ["ms", 1e3];
  return time_us >= 1 || time_us === 0 ? ["µs", 1] : ["ns", 1e-3];
}

export function formatTime(time_us) {
  const [unit, scale] = timeUnit(Math.abs(roundedToThree(time_us)));
  return `${threeDigits(time_us / scale)} ${unit}`;
}

export function formatBytes(bytes) {
  const binary = bytes % 1024 === 0;
  const units = binary ? ["TiB", "GiB", "MiB", "KiB"] : ["TB", "GB", "MB", "KB"];
  for (const [at, unit] of units.entries()) {
    const scale = (binary ? 1024 : 1000) ** (4 - at);
    if ((binary ? bytes : roundedToThree(bytes)) >= scale) return `${binary && bytes % (scale / 16) === 0 ? bytes / scale : threeDigits(bytes / scale)} ${unit}`;
  }
  return `${Number(bytes.toPrecision(4))} B`;
}

export function formatRate(rate) {
  for (const [unit, scale] of [["TB/s", 1e12], ["GB/s", 1e9], ["MB/s", 1e6], ["KB/s", 1e3]]) {
    if (roundedToThree(rate) >= scale) return `${threeDigits(rate / scale)} ${unit}`;
  }
  return `${threeDigits(rate)} B/s`;
}

export function counted(number, noun) {
  return `${number} ${noun}${number === 1 ? "" : "s"}`;
}

// Colours come from the style sheet, which knows whether it is dark.
export function palette() {
  const style = getComputedStyle(document.documentElement);
  const color = (name) => style.getPropertyValue(`--${name}`).trim();
  const names = ["paper", "panel", "ink", "muted", "line", "empty", "part", "whole", "add", "copy", "wrong"];
  const made = Object.fromEntries(names.map((name) => [name, color(name)]));
  made.loads = [0, 1, 2, 3, 4, 5].map((at) => channels(color(`load-${at}`)));
  return made;
}

export function channels(hex) {
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

// The colour of a load in percent.
export function loadColor(colors, percent) {
  const at = (Math.min(100, Math.max(0, percent)) / 100) * 5, low = Math.min(4, Math.floor(at));
  const mixed = colors.loads[low].map((part, index) => Math.round(part + (colors.loads[low + 1][index] - part) * (at - low)));
  return `rgb(${mixed.join(",")})`;
}

// The smallest of 1, 2, 5, 10, 20, 50, ... that is at least this.
export function niceStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return power * [1, 2, 5, 10].find((step) => step * power >= least * 0.999);
}
