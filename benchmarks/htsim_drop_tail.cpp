// Bursts that meet at one port with a drop-tail queue, in htsim: benchmarks/packets.py builds and runs this.
//
//   htsim_drop_tail SENDERS PACKETS ROOM [closed]
//
// Every sender has a link of 400 Gb/s and 50 us to a switch, and sends PACKETS of 4096 bytes at line rate, 7 ns after the
// one before it began. Their port holds ROOM packets and the one that it sends. It prints how many packets were dropped,
// and when the last came through, in us. `closed` has htsim's RoCE answer and send again, and prints how many flows end.
#include <cstdlib>
#include <iostream>
#include <memory>
#include <vector>

#include "eventlist.h"
#include "network.h"
#include "pipe.h"
#include "queue.h"
#include "roce.h"
#include "route.h"

namespace {
const uint64_t RATE = 400ULL * 1000 * 1000 * 1000;
const int HEADER = RocePacket::ACKSIZE, DATA = 4096 - HEADER;

// The end of the way: counts, and answers nothing.
class Counter : public PacketSink {
public:
    explicit Counter(EventList &events) : _events(events) {}
    void receivePacket(Packet &packet) override {
        received++;
        last = _events.now();
        packet.free();
    }
    const string &nodename() override { return _name; }
    int received = 0;
    simtime_picosec last = 0;

private:
    EventList &_events;
    string _name = "counter";
};

// Starts a flow at its time.
class Starter : public EventSource {
public:
    Starter(EventList &events, RoceSrc &source, simtime_picosec when) : EventSource(events, "starter"), _source(source) {
        events.sourceIsPending(*this, when);
    }
    void doNextEvent() override { _source.startflow(); }

private:
    RoceSrc &_source;
};
}  // namespace

int main(int count, char **given) {
    if (count < 4) return 2;
    const int senders = atoi(given[1]), packets = atoi(given[2]), room = atoi(given[3]);
    const bool closed = count > 4;
    std::cout.setstate(std::ios_base::failbit);  // htsim says when flows begin and end
    EventList events;
    events.setEndtime(timeFromMs(50));
    Packet::set_packet_size(DATA);
    Queue port(RATE, (room + 1) * 4096, events, nullptr);
    Pipe down(timeFromUs(50.0), events);
    Counter counter(events);
    std::vector<std::unique_ptr<RoceSrc>> sources;
    std::vector<std::unique_ptr<RoceSink>> sinks;
    std::vector<std::unique_ptr<Queue>> queues;
    std::vector<std::unique_ptr<Pipe>> pipes;
    std::vector<std::unique_ptr<Starter>> starters;
    std::vector<std::unique_ptr<Route>> routes;
    for (int i = 0; i < senders; i++) {
        sources.push_back(std::make_unique<RoceSrc>(nullptr, nullptr, events, RATE));
        sinks.push_back(std::make_unique<RoceSink>());
        queues.push_back(std::make_unique<Queue>(RATE, 1 << 30, events, nullptr));
        pipes.push_back(std::make_unique<Pipe>(timeFromUs(50.0), events));
        routes.push_back(std::make_unique<Route>());
        Route *forth = routes.back().get();
        for (PacketSink *hop : std::vector<PacketSink *>{queues.back().get(), pipes.back().get(), &port, &down})
            forth->push_back(hop);
        forth->push_back(closed ? static_cast<PacketSink *>(sinks.back().get()) : &counter);
        pipes.push_back(std::make_unique<Pipe>(timeFromUs(100.0), events));
        routes.push_back(std::make_unique<Route>());
        routes.back()->push_back(pipes.back().get());
        routes.back()->push_back(sources.back().get());
        sources.back()->set_flowsize(static_cast<uint64_t>(packets) * DATA);
        sources.back()->set_dst(0);
        sinks.back()->set_src(i + 1);
        sources.back()->connect(forth, routes.back().get(), *sinks.back(), TRIGGER_START);
        starters.push_back(std::make_unique<Starter>(events, *sources.back(), static_cast<simtime_picosec>(i) * 7000));
    }
    while (events.doNextEvent()) {}
    std::cout.clear();
    if (closed) {
        int done = 0;
        for (const auto &sink : sinks) done += sink->cumulative_ack() >= static_cast<uint64_t>(packets) * DATA;
        std::cout << port.num_drops() << " " << done << "\n";
    } else std::cout << port.num_drops() << " " << static_cast<double>(counter.last) / 1e6 << "\n";
    return 0;
}
