// The names in a network stay readable: where the picture is small they grow, as far as there is room, or they go.

// The least height of letters on the screen, how much smaller they may be where room is short, and their width.
const LEAST = 8.5, SHORT = 0.85, WIDE = 0.7;

export class Labels {
  constructor(svg, { device_width: width, device_height: height, font, devices }) {
    Object.assign(this, { svg, width, height, font, texts: [], devices: [] });
    const longest = Math.max(1, ...devices.map(({ name }) => name.length));
    // How large letters, and how much larger devices, can be before two of them meet.
    this.letters = this.grow = Infinity;
    devices.forEach(({ x, y }, at) => {
      for (let other = 0; other < at; other++) {
        const across = Math.abs(x - devices[other].x), down = Math.abs(y - devices[other].y);
        this.letters = Math.min(this.letters, Math.max(across / (WIDE * longest), down));
        this.grow = Math.min(this.grow, Math.max(across / width, down / height));
      }
    });
    this.across = WIDE * longest;
  }

  // A text, and how much room it has.
  add(text, width = Infinity, height = Infinity) {
    const size = Number(text.getAttribute("font-size"));
    this.texts.push({ text, size, most: Math.min(width / (WIDE * text.textContent.length), height) });
  }

  // A device: what is drawn of it, and its name.
  addDevice(body, text, x, y) {
    this.devices.push({ body, text, x, y });
  }

  // To be called when the picture has another size.
  fit() {
    const seen = this.svg.getScreenCTM();
    if (!seen || !seen.a || !this.svg.clientWidth) return;
    const least = LEAST / seen.a;
    for (const { text, size, most } of this.texts) this.set(text, Math.max(size, Math.min(least, most)), least);
    const letters = Math.max(Math.min(this.font, 0.95 * this.letters), Math.min(least, 0.95 * this.letters));
    const grow = Math.max(1, Math.min(letters / this.font, 0.8 * this.grow));
    for (const { body, text, x, y } of this.devices) {
      body.setAttribute("transform", grow > 1 ? `translate(${x * (1 - grow)} ${y * (1 - grow)}) scale(${grow})` : "");
      this.set(text, letters, least);
      text.setAttribute("y", y + letters * 0.36);
      text.classList.toggle("over", this.across * letters > grow * this.width);
    }
  }

  set(text, size, least) {
    text.setAttribute("font-size", size);
    text.style.display = size < SHORT * least ? "none" : "";
  }
}
