// Many points, drawn by the graphics card: pan and zoom move two numbers, whatever the number of points.

const VERTEX = `
attribute vec2 place; attribute float hue; attribute float dim;
uniform vec2 scale; uniform vec2 offset; uniform float size; uniform vec3 hues[16];
varying vec4 color;
void main() {
  gl_Position = vec4(place * scale + offset, dim > 0.5 ? 0.5 : 0.0, 1.0);
  gl_PointSize = size;
  int at = int(hue + 0.5);
  vec3 found = hues[0];
  for (int i = 0; i < 16; i++) if (i == at) found = hues[i];
  color = vec4(found, dim > 0.5 ? 0.05 : 0.75);
}`;
const FRAGMENT = `
precision mediump float; varying vec4 color;
void main() {
  vec2 away = gl_PointCoord - vec2(0.5);
  if (dot(away, away) > 0.25) discard;
  gl_FragColor = vec4(color.rgb * color.a, color.a);
}`;

export class Points {
  constructor(canvas) {
    this.canvas = canvas;
    this.gl = canvas.getContext("webgl", { antialias: false, premultipliedAlpha: true, preserveDrawingBuffer: true });
    this.count = 0;
    if (!this.gl) return;
    const { gl } = this, program = gl.createProgram();
    for (const [kind, text] of [[gl.VERTEX_SHADER, VERTEX], [gl.FRAGMENT_SHADER, FRAGMENT]]) {
      const shader = gl.createShader(kind);
      gl.shaderSource(shader, text);
      gl.compileShader(shader);
      gl.attachShader(program, shader);
    }
    gl.linkProgram(program);
    gl.useProgram(program);
    this.program = program;
    this.at = Object.fromEntries(["scale", "offset", "size", "hues"].map((name) => [name, gl.getUniformLocation(program, name)]));
    this.buffers = Object.fromEntries([["place", 2], ["hue", 1], ["dim", 1]].map(([name, size]) => {
      const buffer = gl.createBuffer(), where = gl.getAttribLocation(program, name);
      gl.bindBuffer(gl.ARRAY_BUFFER, buffer);
      gl.enableVertexAttribArray(where);
      gl.vertexAttribPointer(where, size, gl.FLOAT, false, 0, 0);
      return [name, buffer];
    }));
    gl.enable(gl.BLEND);
    gl.blendFunc(gl.ONE, gl.ONE_MINUS_SRC_ALPHA);
  }

  fill(name, values) {
    if (name === "place") this.count = values.length / 2;
    if (!this.gl) {
      this[name] = values;
      return;
    }
    this.gl.bindBuffer(this.gl.ARRAY_BUFFER, this.buffers[name]);
    this.gl.bufferData(this.gl.ARRAY_BUFFER, values, this.gl.STATIC_DRAW);
  }

  // `view` is the part of the unit square that is seen: left, bottom, width, height.
  draw(view, hues, size) {
    const { width, height } = this.canvas.getBoundingClientRect(), ratio = window.devicePixelRatio || 1;
    if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(height * ratio)) {
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(height * ratio);
    }
    if (!this.gl) {
      this.plain(view, hues, size * ratio);
      return;
    }
    const { gl } = this;
    gl.viewport(0, 0, this.canvas.width, this.canvas.height);
    gl.clearColor(0, 0, 0, 0);
    gl.clear(gl.COLOR_BUFFER_BIT);
    gl.uniform2f(this.at.scale, 2 / view.width, 2 / view.height);
    gl.uniform2f(this.at.offset, -1 - (2 * view.left) / view.width, -1 - (2 * view.bottom) / view.height);
    gl.uniform1f(this.at.size, size * ratio);
    const flat = new Float32Array(48);
    hues.forEach((hue, at) => flat.set([1, 3, 5].map((from) => parseInt(hue.slice(from, from + 2), 16) / 255), 3 * at));
    gl.uniform3fv(this.at.hues, flat);
    gl.drawArrays(gl.POINTS, 0, this.count);
  }

  // Wait until it is drawn, to know how long that takes.
  finish() {
    if (this.gl) this.gl.readPixels(0, 0, 1, 1, this.gl.RGBA, this.gl.UNSIGNED_BYTE, new Uint8Array(4));
  }

  // Where there is no graphics card to ask, a sample on a plain canvas.
  plain(view, hues, size) {
    const draw = this.canvas.getContext("2d"), { width, height } = this.canvas, every = Math.max(1, Math.ceil(this.count / 40_000));
    draw.clearRect(0, 0, width, height);
    for (let at = 0; at < this.count; at += every) {
      draw.globalAlpha = this.dim[at] ? 0.04 : 0.7;
      draw.fillStyle = hues[this.hue[at]];
      draw.fillRect(((this.place[2 * at] - view.left) / view.width) * width, height - ((this.place[2 * at + 1] - view.bottom) / view.height) * height, size, size);
    }
  }
}
