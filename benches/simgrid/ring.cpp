// A ring all-reduce in SimGrid: ring WORKERS BYTES. Prints the simulated seconds and the seconds that it took.
//
// The flow model is CM02 without its corrections for TCP, which is the sharing that `paceline simulate --network fluid`
// has: max-min fair, no latency. Every worker has a link of 25 Gbit/s each way. A message is a communication between two
// mailboxes, as in SimGrid's own examples; the actors do nothing else.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <simgrid/s4u.hpp>

namespace sg4 = simgrid::s4u;

int main(int argc, char** argv) {
    sg4::Engine engine(&argc, argv);
    for (const char* setting : {"network/model:CM02", "network/optim:Lazy", "network/crosstraffic:0",
                                "network/TCP-gamma:0", "contexts/factory:raw", "contexts/stack-size:16"})
        sg4::Engine::set_config(setting);
    const unsigned workers = std::atoi(argv[1]);
    const double bytes = std::atof(argv[2]);
    auto* zone = sg4::create_star_zone("cluster");
    std::vector<sg4::Host*> hosts;
    std::vector<sg4::Mailbox*> boxes;
    for (unsigned i = 0; i < workers; i++) {
        auto* host = zone->create_host("host" + std::to_string(i), 1e9);
        auto* out = zone->create_link("out" + std::to_string(i), 25e9 / 8)->set_latency(0)->seal();
        auto* in = zone->create_link("in" + std::to_string(i), 25e9 / 8)->set_latency(0)->seal();
        zone->add_route(host->get_netpoint(), nullptr, nullptr, nullptr, {sg4::LinkInRoute(out)}, false);
        zone->add_route(nullptr, host->get_netpoint(), nullptr, nullptr, {sg4::LinkInRoute(in)}, false);
        hosts.push_back(host);
        boxes.push_back(sg4::Mailbox::by_name("to" + std::to_string(i)));
    }
    zone->seal();
    // Pieces differ by one element of four bytes, as in Paceline.
    const auto elements = static_cast<unsigned long>(bytes / 4);
    auto piece = [=](unsigned lane) { return 4.0 * (elements / workers + (lane < elements % workers)); };
    static int token;
    for (unsigned rank = 0; rank < workers; rank++)
        sg4::Actor::create("worker" + std::to_string(rank), hosts[rank], [=] {
            auto* next = boxes[(rank + 1) % workers];
            for (unsigned step = 0; step < 2 * (workers - 1); step++) {
                auto sent = next->put_async(&token, piece((rank + 2 * workers - step) % workers));
                boxes[rank]->get<int>();
                sent->wait();
            }
        });
    const auto start = std::chrono::steady_clock::now();
    engine.run();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    std::printf("%.9f %.3f\n", sg4::Engine::get_clock(), took.count());
}
