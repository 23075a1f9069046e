// Stress tests of the core for the sanitizers (`make sanitize`).
//
//   core_stress DIR [seed] [rounds] [name]
#include "common.h"

using namespace suffixsvc;

int main(int argc, char** argv) try {
    if (argc < 2) fail("usage", "core_stress DIR [seed] [rounds] [name]");
    const StressArguments arguments{argv[1], static_cast<std::uint32_t>(argc > 2 ? std::atol(argv[2]) : 1),
                                    argc > 3 ? std::atoi(argv[3]) : 200};
    const struct {
        std::string name;
        void (*run)(const StressArguments&);
    } tests[] = {{"index", stress_index},           {"steps", stress_steps},   {"segments", stress_segments},
                 {"union", stress_union},           {"ngrams", stress_ngrams}, {"words", stress_words},
                 {"publishing", stress_publishing}, {"driver", stress_driver}};
    for (const auto& [name, run] : tests) {
        if (argc > 4 && name != argv[4]) continue;
        run(arguments);
        std::printf("core_stress: %s, seed %u, %d rounds: clean\n", name.c_str(), arguments.seed,
                    arguments.rounds);
        std::fflush(stdout);
    }
    return 0;
} catch (const std::exception& error) {
    fail("exception", error.what());
}
