// Every transfer of a schedule of many ranks, and what each rank holds after each step.
//
// Where the collective sums, a place has the number of contributions in it and a sum of random numbers, one for each
// contributor: the place is complete when both are what all contributors together make. Elsewhere a place is one bit.

export const COUNT_LIMIT = 65535;

// The transfers come in compressed blocks of steps, which are unpacked when they are needed.
export class Transfers {
  constructor(data) {
    this.blocks = data.blocks;
    this.columns = [];
    this.where = [];
    this.blocks.forEach(({ rows }, block) => {
      let from = 0;
      for (const count of rows) this.where.push({ block, from, to: (from += count) });
    });
  }

  // Everything up to these steps, so that they can be replayed.
  async unpack(steps) {
    const last = steps ? this.where[steps - 1].block : -1;
    for (let block = 0; block <= last; block++) {
      if (!this.columns[block]) this.columns[block] = await unpacked(this.blocks[block].packed);
    }
  }

  of(step) {
    const { block, from, to } = this.where[step];
    return { ...this.columns[block], from, to };
  }
}

export async function unpacked(text) {
  const all = await inflated(Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0))), length = all.length / 5;
  const [src, dst, chunk, count, flags] = [0, 1, 2, 3, 4].map((at) => {
    const column = all.subarray(at * length, (at + 1) * length);
    for (let row = 1; row < length; row++) column[row] += column[row - 1];
    return column;
  });
  for (let row = 0; row < length; row++) dst[row] += src[row];
  return { src, dst, chunk, count, flags };
}

export async function inflated(bytes) {
  const stream = new DecompressionStream("deflate"), writer = stream.writable.getWriter(), reader = stream.readable.getReader();
  writer.write(bytes);
  writer.close();
  const parts = [];
  for (let part = await reader.read(); !part.done; part = await reader.read()) parts.push(part.value);
  const whole = new Uint8Array(parts.reduce((sum, { length }) => sum + length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return new Int32Array(whole.buffer);
}

// The contract: which rank holds which chunk before, and which it must hold after.
export class Contract {
  constructor({ ranks, root, chunks, chunks_a_block }, layout) {
    Object.assign(this, { ranks, root, chunks, layout, size: chunks_a_block });
  }

  holds(rank, chunk) {
    if (rank >= this.ranks) return false;
    const block = Math.floor(chunk / this.size);
    switch (this.layout) {
      case "EVERYWHERE": return true;
      case "ROOT": return rank === this.root;
      case "BLOCK": return rank === block;
      case "SHIFTED": return rank === (block + 1) % this.ranks;
      case "PAIR_SOURCE": return rank === Math.floor(block / this.ranks);
      default: return rank === block % this.ranks;
    }
  }

  // The runs of chunks of a rank: first and count.
  runs(rank) {
    const { ranks, size, chunks } = this;
    switch (this.layout) {
      case "EVERYWHERE": return [[0, chunks]];
      case "ROOT": return rank === this.root ? [[0, chunks]] : [];
      case "BLOCK": return [[rank * size, size]];
      case "SHIFTED": return [[((rank + ranks - 1) % ranks) * size, size]];
      case "PAIR_SOURCE": return [[rank * ranks * size, ranks * size]];
      default: return Array.from({ length: ranks }, (_, source) => [(source * ranks + rank) * size, size]);
    }
  }
}

export class Replay {
  // `watch` is told of every place that changes; see HeatMap.
  constructor(data, transfers, watch) {
    Object.assign(this, { data, transfers, watch });
    this.members = data.ranks + data.relays + data.switches;
    this.before = new Contract(data, data.before);
    this.after = new Contract(data, data.after);
    const places = this.members * data.chunks;
    if (data.reduces) {
      this.counts = new Uint16Array(places);
      this.marks = new Uint32Array(places);
      this.mark = Uint32Array.from({ length: data.ranks }, (_, rank) => scrambled(rank + 1));
      this.total = this.mark.reduce((sum, mark) => (sum + mark) >>> 0, 0);
    } else this.bits = new Uint8Array(Math.ceil(places / 8));
    this.room(1024);
    this.rewind();
  }

  // What a step's transfers carry: a place for each chunk.
  room(size) {
    this.counted = new Uint16Array(size);
    this.marked = new Uint32Array(size);
  }

  rewind() {
    const { ranks, chunks, reduces } = this.data;
    this.done = 0;
    this.ready = 0;
    for (const column of [this.counts, this.marks, this.bits]) if (column) column.fill(0);
    this.watch.rewind();
    for (let rank = 0; rank < ranks; rank++) {
      if (reduces) {
        this.counts.fill(1, rank * chunks, (rank + 1) * chunks);
        this.marks.fill(this.mark[rank], rank * chunks, (rank + 1) * chunks);
        this.watch.everything(rank);
      } else for (const [first, count] of this.before.runs(rank)) {
        for (let chunk = first; chunk < first + count; chunk++) this.hold(rank, chunk, 1);
      }
    }
  }

  async goTo(steps) {
    await this.transfers.unpack(steps);
    if (steps < this.done) this.rewind();
    while (this.done < steps) this.apply(this.done);
  }

  // Every transfer reads what its source held before the step.
  apply(step) {
    const rows = this.transfers.of(step);
    let size = 0;
    for (let row = rows.from; row < rows.to; row++) size += rows.count[row];
    if (size > this.counted.length) this.room(size);
    this.watch.begin();
    if (this.data.reduces) this.sum(rows);
    else this.copy(rows);
    this.done = step + 1;
  }

  sum({ src, dst, chunk, count, flags, from, to }) {
    const { counts, marks, counted, marked, mark, total, watch, data: { ranks, chunks } } = this;
    for (let row = from, at = 0; row < to; row++) {
      const first = src[row] * chunks + chunk[row], input = flags[row] & 2, own = this.before.holds(src[row], chunk[row]);
      for (let place = first; place < first + count[row]; place++, at++) {
        counted[at] = input ? (own ? 1 : 0) : counts[place];
        marked[at] = input ? (own ? mark[src[row]] : 0) : marks[place];
      }
    }
    for (let row = from, at = 0; row < to; row++) {
      const rank = dst[row], adds = flags[row] & 1;
      let place = rank * chunks + chunk[row];
      for (let here = chunk[row]; here < chunk[row] + count[row]; here++, place++, at++) {
        const had = counts[place], was = had === ranks && marks[place] === total;
        const amount = adds ? Math.min(had + counted[at], COUNT_LIMIT) : counted[at];
        counts[place] = amount;
        marks[place] = adds ? marks[place] + marked[at] : marked[at];
        const change = (amount === ranks && marks[place] === total ? 1 : 0) - (was ? 1 : 0);
        if (change && this.after.holds(rank, here)) this.ready += change;
        watch.changed(rank, here, Math.min(amount, ranks) - Math.min(had, ranks), change);
      }
      watch.received(rank, chunk[row], count[row], adds);
    }
  }

  copy({ src, dst, chunk, count, flags, from, to }) {
    const { counted, watch } = this;
    for (let row = from, at = 0; row < to; row++) {
      for (let here = chunk[row]; here < chunk[row] + count[row]; here++, at++) {
        counted[at] = flags[row] & 2 ? this.before.holds(src[row], here) : this.have(src[row], here);
      }
    }
    for (let row = from, at = 0; row < to; row++) {
      for (let here = chunk[row]; here < chunk[row] + count[row]; here++, at++) {
        this.hold(dst[row], here, flags[row] & 1 ? counted[at] | this.have(dst[row], here) : counted[at]);
      }
      watch.received(dst[row], chunk[row], count[row], flags[row] & 1);
    }
  }

  hold(rank, chunk, held) {
    const place = rank * this.data.chunks + chunk, bit = 1 << (place & 7), had = this.bits[place >>> 3] & bit;
    if (Boolean(had) === Boolean(held)) return;
    this.bits[place >>> 3] ^= bit;
    const change = held ? 1 : -1;
    if (this.after.holds(rank, chunk)) this.ready += change;
    this.watch.changed(rank, chunk, change, change);
  }

  // How many contributions are in a place.
  have(rank, chunk) {
    const place = rank * this.data.chunks + chunk;
    return this.counts ? this.counts[place] : (this.bits[place >>> 3] >>> (place & 7)) & 1;
  }

  complete(rank, chunk) {
    if (!this.counts) return this.have(rank, chunk) === 1;
    const place = rank * this.data.chunks + chunk;
    return this.counts[place] === this.data.ranks && this.marks[place] === this.total;
  }

  // Whether a place has some contribution more than once: it has too many, or enough but not the right ones.
  doubled(rank, chunk) {
    return Boolean(this.counts) && this.have(rank, chunk) >= this.data.ranks && !this.complete(rank, chunk);
  }
}

// A number to tell ranks apart by in a sum: the same for a rank every time.
export function scrambled(number) {
  let mixed = Math.imul(number, 0x9e3779b1);
  mixed = Math.imul(mixed ^ (mixed >>> 15), 0x85ebca6b);
  mixed = Math.imul(mixed ^ (mixed >>> 13), 0xc2b2ae35);
  return (mixed ^ (mixed >>> 16)) >>> 0;
}
