// Many points, pixel by pixel: all of them are drawn again in every frame, with or without a graphics card. Where points
// overlap, a pixel has the colour of one of them by chance: a mixed colour would belong to no point.

// Pixels that a frame may set, whatever the number of points.
const MOST_SET = 4_000_000;
const ALONE = 0xa8, UPON = 0xff, DIM = 0x1c;

export class Points {
  constructor(canvas) {
    this.canvas = canvas;
    this.set(new Float32Array(0), new Uint8Array(0));
  }

  // Where points are in the unit square, x and y in turn, the number of each one's colour, and which are dim.
  set(place, hue, dim = null) {
    Object.assign(this, { place, hue, dim, count: hue.length });
  }

  // `view` is the part of the unit square that is seen: left, bottom, width, height.
  draw(view, hues, size) {
    const box = this.canvas.getBoundingClientRect(), ratio = window.devicePixelRatio || 1, draw = this.canvas.getContext("2d");
    const width = Math.max(1, Math.round(box.width * ratio)), height = Math.max(1, Math.round(box.height * ratio));
    if (!this.image || this.image.width !== width || this.image.height !== height) {
      [this.canvas.width, this.canvas.height] = [width, height];
      this.image = draw.createImageData(width, height);
      this.pixels = new Uint32Array(this.image.data.buffer);
    }
    this.pixels.fill(0);
    const wide = Math.max(1, Math.min(Math.round(size * ratio), Math.floor(Math.sqrt(MOST_SET / Math.max(1, this.count)))));
    if (this.dim) this.pass(view, { alone: colours(hues, DIM), upon: colours(hues, DIM), dense: 0 }, wide, 1);
    this.pass(view, { alone: colours(hues, ALONE), upon: colours(hues, UPON), dense: UPON << 24 }, wide, 0);
    draw.putImageData(this.image, 0, 0);
  }

  // The points that are dim, or those that are not, over what is there.
  pass(view, { alone, upon, dense }, wide, dim) {
    const { place, hue, pixels, count } = this, { width, height } = this.image, dims = this.dim, offsets = disc(wide, width);
    const across = width / view.width, up = height / view.height, half = wide >> 1, right = width - wide, bottom = height - wide;
    for (let at = 0; at < count; at++) {
      if (dims !== null && dims[at] !== dim) continue;
      const x = ((place[2 * at] - view.left) * across - half) | 0, y = (height - (place[2 * at + 1] - view.bottom) * up - half) | 0;
      if (x < 0 || y < 0 || x > right || y > bottom) continue;
      const first = y * width + x, colour = alone[hue[at]], other = upon[hue[at]], wins = (Math.imul(at, 0x9e3779b1) >>> 31) === 1;
      for (let nth = 0; nth < offsets.length; nth++) {
        const to = first + offsets[nth], there = pixels[to];
        pixels[to] = there === 0 ? colour : wins ? other : there | dense;
      }
    }
  }
}

// The pixels of a disc of this width, from its upper left corner on, in rows of a picture.
function disc(wide, row) {
  const found = [], middle = (wide - 1) / 2;
  for (let y = 0; y < wide; y++) {
    for (let x = 0; x < wide; x++) {
      if (wide < 4 || Math.hypot(x - middle, y - middle) <= wide / 2) found.push(y * row + x);
    }
  }
  return Int32Array.from(found);
}

// Colours as a canvas has them in memory: red first, on a machine with its low byte first.
function colours(hues, opacity) {
  return Uint32Array.from(hues, (hue) => {
    const [red, green, blue] = [1, 3, 5].map((from) => parseInt(hue.slice(from, from + 2), 16));
    return ((opacity << 24) | (blue << 16) | (green << 8) | red) >>> 0;
  });
}
