// Ports that pause each other, in htsim: benchmarks/packets.py builds and runs this.
//
//   htsim_pfc SENDERS NEAR PACKETS HIGH LOW
//
// SENDERS hang on one switch and NEAR on a second one, by links of 400 Gb/s and 500 ns; a trunk of the same kind joins the
// two. All send PACKETS of 4096 bytes to one receiver at the second switch, 7 ns after one another; one more at the first
// sends as many to a receiver of its own there, through the trunk that the others fill. A switch pauses a link when it
// holds more than HIGH bytes that came by it, and lets it go on below LOW. It prints when the last packet of all and the
// last of the bystander arrived, in us, how often a sender was paused, and how often the trunk was.
#include <cstdlib>
#include <iostream>
#include <memory>
#include <vector>

#include "callback_pipe.h"
#include "eth_pause_packet.h"
#include "eventlist.h"
#include "network.h"
#include "pipe.h"
#include "queue_lossless_input.h"
#include "queue_lossless_output.h"
#include "rocepacket.h"
#include "route.h"
#include "switch.h"

namespace {
const uint64_t RATE = 400ULL * 1000 * 1000 * 1000;
const int DATA = 4096 - RocePacket::ACKSIZE;
const simtime_picosec LATENCY = timeFromNs(500.0);

// A port that counts its pauses.
class Port : public LosslessOutputQueue {
public:
    explicit Port(EventList &events) : LosslessOutputQueue(RATE, 1 << 30, events, nullptr) {}
    void receivePacket(Packet &packet) override {
        if (packet.type() == ETH_PAUSE) pauses += static_cast<EthPausePacket &>(packet).sleepTime() > 0;
        LosslessOutputQueue::receivePacket(packet);
    }
    void receivePacket(Packet &packet, VirtualQueue *from) override { LosslessOutputQueue::receivePacket(packet, from); }
    int pauses = 0;
};

// The end of the way.
class Receiver : public PacketSink {
public:
    explicit Receiver(EventList &events) : _events(events) {}
    void receivePacket(Packet &packet) override {
        last = _events.now();
        packet.free();
    }
    void receivePacket(Packet &packet, VirtualQueue *) override { receivePacket(packet); }
    const string &nodename() override { return _name; }
    simtime_picosec last = 0;

private:
    EventList &_events;
    string _name = "receiver";
};

// Gives all its packets to its port at once.
class Sender : public EventSource, public VirtualQueue {
public:
    Sender(EventList &events, Route &route, int packets, simtime_picosec when)
        : EventSource(events, "sender"), _flow(nullptr), _route(route), _packets(packets) {
        events.sourceIsPending(*this, when);
    }
    void doNextEvent() override {
        for (int i = 0; i < _packets; i++)
            RocePacket::newpkt(_flow, _route, static_cast<uint64_t>(i) * DATA, DATA, false, false, 0)->sendOn2(this);
    }
    void completedService(Packet &) override {}

private:
    PacketFlow _flow;
    Route &_route;
    int _packets;
};

// A link: the port that sends, the wire, and what counts at the switch that it leads to.
struct Link {
    Link(EventList &events, Switch *to) : port(events), wire(LATENCY, events) {
        if (to) into = std::make_unique<LosslessInputQueue>(events, &port, to, LATENCY);
    }
    void add_to(Route &route) {
        route.push_back(&port);
        route.push_back(&wire);
        if (into) route.push_back(into.get());
    }
    Port port;
    Pipe wire;
    std::unique_ptr<LosslessInputQueue> into;
};
}  // namespace

int main(int count, char **given) {
    if (count < 6) return 2;
    const int senders = atoi(given[1]), near = atoi(given[2]), packets = atoi(given[3]);
    LosslessInputQueue::_high_threshold = static_cast<uint64_t>(atoll(given[4]));
    LosslessInputQueue::_low_threshold = static_cast<uint64_t>(atoll(given[5]));
    EventList events;
    events.setEndtime(timeFromMs(1000));
    Packet::set_packet_size(DATA);
    Switch first(events, "first"), second(events, "second");
    Link trunk(events, &second), down(events, nullptr), aside(events, nullptr);
    Receiver receiver(events), bystander(events);
    std::vector<std::unique_ptr<Link>> links;
    std::vector<std::unique_ptr<Route>> routes;
    std::vector<std::unique_ptr<Sender>> starts;
    for (int i = 0; i <= senders + near; i++) {  // the one in the middle is the bystander
        const bool far = i <= senders;
        links.push_back(std::make_unique<Link>(events, far ? &first : &second));
        routes.push_back(std::make_unique<Route>());
        Route &route = *routes.back();
        links.back()->add_to(route);
        if (far) trunk.add_to(route);
        (i == senders ? aside : down).add_to(route);
        route.push_back(i == senders ? &bystander : &receiver);
        starts.push_back(std::make_unique<Sender>(events, route, packets, static_cast<simtime_picosec>(i) * 7000));
    }
    while (events.doNextEvent()) {}
    int paused = 0;
    for (const auto &link : links) paused += link->port.pauses;
    const simtime_picosec last = std::max(receiver.last, bystander.last);
    std::cout << static_cast<double>(last) / 1e6 << " " << static_cast<double>(bystander.last) / 1e6 << " " << paused << " "
              << trunk.port.pauses << "\n";
    return 0;
}
