// Stress test of n-gram counting for the sanitizers: counters with minimal memory, runs that are merged and
// tallied in parts, compared with a map; then mutated runs, most with correct checksums, which may be refused
// or give wrong counts, but must not crash, hang or trip a sanitizer.
//
//   ngram_stress DIR [seed] [rounds]
#include <algorithm>
#include <cstring>
#include <map>
#include <thread>

#include "base/crc32c.h"
#include "ngram/ngram_counter.h"
#include "ngram/ngram_run.h"
#include "ngram/ngram_tally.h"
#include "segment_inputs.h"

using namespace suffixsvc;

namespace {

using Ngram = std::vector<Token>;
using Follows = std::map<Ngram, std::map<Token, std::int32_t>>;

constexpr std::int64_t kEnd = std::int64_t{1} << 31;

void require(const FileFault& fault, const char* where) {
    if (fault) fail(where, fault.message + ": " + fault.got);
}

KeyShape random_shape(std::mt19937& random, bool large) {
    const unsigned highest = 1 + random() % kMaxOrder;
    return {1 + static_cast<unsigned>(random()) % highest, highest, large ? 32u : 17u};
}

// Counts texts into several runs, and n-grams of one order into `follows`.
std::vector<std::string> count(std::mt19937& random, const std::string& folder, const KeyShape& shape,
                               std::size_t texts, unsigned order, Follows& follows) {
    std::unique_ptr<NgramCounter> counter = make_ngram_counter(shape, 5 * (1u << 10) * 8 * kMaxKeyWords);
    std::vector<std::string> runs;
    const auto spill = [&] {
        runs.push_back(folder + "/" + std::to_string(runs.size()) + ".run");
        require(counter->spill(runs.back()), "spill");
    };
    for (std::size_t k = 0; k < texts; ++k) {
        std::vector<Token> text = adversarial_text(random, 400);
        for (Token& t : text) t = static_cast<Token>(std::min<std::int64_t>(t, shape.largest_token()));
        const std::size_t first = random() % 3 ? 0 : random() % (text.size() + 1);
        if (text.size() > counter->room() || random() % 40 == 0) spill();
        counter->add(text, first);
        for (std::size_t i = std::max<std::size_t>(first, order); i < text.size(); ++i)
            ++follows[{text.begin() + static_cast<std::ptrdiff_t>(i - order),
                       text.begin() + static_cast<std::ptrdiff_t>(i)}][text[i]];
    }
    spill();
    return runs;
}

std::string tally(const std::vector<std::string>& runs, unsigned order, const std::string& path,
                  unsigned parts, std::size_t memory) {
    std::vector<std::int64_t> bounds;
    require(split_runs(runs, parts, bounds), "split");
    bounds.insert(bounds.begin(), 0);
    bounds.push_back(kEnd);
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i + 1 < bounds.size(); ++i)
        threads.emplace_back([&, i] {
            SegmentJob job;
            std::vector<TallyOutput> outputs(1);
            outputs[0].path = path + std::to_string(i);
            outputs[0].order = order;
            outputs[0].slots = order;
            require(tally_runs(runs, bounds[i], bounds[i + 1], memory, outputs, job), "tally");
        });
    for (std::thread& thread : threads) thread.join();
    std::string found;
    for (std::size_t i = 0; i + 1 < bounds.size(); ++i) found += read_file(path + std::to_string(i));
    return found;
}

std::string expected(const Follows& follows) {
    std::vector<std::int32_t> words;
    for (const auto& [ngram, counts] : follows) {
        words.insert(words.end(), ngram.begin(), ngram.end());
        words.push_back(static_cast<std::int32_t>(counts.size()));
        std::vector<std::pair<std::int32_t, Token>> ranked;
        for (const auto& [token, n] : counts) ranked.emplace_back(-n, token);
        std::sort(ranked.begin(), ranked.end());
        for (const auto& [n, token] : ranked) {
            words.push_back(token);
            words.push_back(-n);
        }
    }
    return {reinterpret_cast<const char*>(words.data()), words.size() * sizeof(std::int32_t)};
}

void sound(const std::string& folder, std::uint32_t seed, int rounds) {
    for (int round = 0; round < rounds; ++round) {
        std::mt19937 random(seed + static_cast<std::uint32_t>(round));
        const KeyShape shape = random_shape(random, round % 2);
        const unsigned order = shape.lowest + random() % (shape.highest - shape.lowest + 1);
        Follows follows;
        const std::vector<std::string> runs = count(random, folder, shape, 1 + random() % 60, order, follows);
        const std::string wanted = expected(follows);
        if (tally(runs, order, folder + "/apart", 1 + random() % 4, random() % 9999) != wanted)
            fail("tally", "not what was counted, round " + std::to_string(round));
        SegmentJob job;
        require(combine_runs(runs, folder + "/combined.run", random() % 9999, job), "combine");
        require(check_run(folder + "/combined.run"), "check");
        if (tally({folder + "/combined.run"}, order, folder + "/whole", 3, 1 << 16) != wanted)
            fail("combine", "not what was counted, round " + std::to_string(round));
    }
}

// Mutates a run, in its header or its entries.
void mutate(std::mt19937& random, std::string& bytes) {
    RunHeader header;
    const bool in_header = random() % 3 == 0 || bytes.size() < sizeof header + 8;
    const std::size_t begin = in_header ? 8 : sizeof header;
    const std::size_t size = (in_header ? sizeof header : bytes.size()) - begin;
    const std::size_t at = begin + random() % (size - 3);
    const std::uint32_t nasty[] = {
        0,           1,           2,           4,           9,
        16,          17,          31,          32,          33,
        0x7fffffffu, 0x80000000u, 0xfffffffeu, 0xffffffffu, static_cast<std::uint32_t>(random())};
    const std::uint32_t word = nasty[random() % std::size(nasty)];
    std::memcpy(bytes.data() + at, &word, 4);
    if (random() % 4 == 0 && !in_header) {  // reorder entries
        const std::size_t half = size / 2;
        std::swap_ranges(bytes.begin() + static_cast<std::ptrdiff_t>(begin),
                         bytes.begin() + static_cast<std::ptrdiff_t>(begin + half),
                         bytes.begin() + static_cast<std::ptrdiff_t>(begin + half));
    }
    if (random() % 8 == 0) bytes.resize(random() % (bytes.size() + 100));
}

void repair_checksums(std::string& bytes) {
    RunHeader header;
    if (bytes.size() < sizeof header) return;
    std::memcpy(&header, bytes.data(), sizeof header);
    const RunHeader none{};
    header.crc = 0;
    const std::uint64_t entry = std::uint64_t{8} * header.words + 4;
    if (header.words <= kMaxKeyWords) header.entries = (bytes.size() - sizeof header) / entry;
    std::uint32_t crc = crc32c(&none, sizeof none);
    crc = crc32c(bytes.data() + sizeof header, bytes.size() - sizeof header, crc);
    header.crc = crc32c(&header, sizeof header, crc);
    std::memcpy(bytes.data(), &header, sizeof header);
}

struct Mutants {
    int refused = 0, damaged = 0, passed = 0;
};

void hostile(const std::string& folder, std::uint32_t seed, int rounds, Mutants& seen) {
    const std::string path = folder + "/mutant.run";
    for (int round = 0; round < rounds; ++round) {
        std::mt19937 random(seed * 13 + static_cast<std::uint32_t>(round));
        const KeyShape shape = random_shape(random, round % 2);
        Follows follows;
        const std::vector<std::string> runs =
            count(random, folder, shape, 1 + random() % 8, shape.lowest, follows);
        const std::string sound_run = read_file(runs[0]);
        for (int k = 0; k < 20; ++k) {
            std::string bytes = sound_run;
            for (std::uint32_t times = 1 + random() % 3; times > 0; --times) mutate(random, bytes);
            if (random() % 4 != 0) repair_checksums(bytes);
            write_file(path, bytes);
            SegmentJob job;
            FileFault fault;
            const RunHeader header = read_run_header(path, fault);
            if (fault && fault.message.empty()) fail("header", "refused without a reason");
            const bool damaged = static_cast<bool>(check_run(path));
            if (fault && !damaged) fail("check", "accepts what the header refuses");
            ++(fault ? seen.refused : damaged ? seen.damaged : seen.passed);
            std::vector<std::int64_t> bounds;
            (void)split_runs({path, runs[0]}, 3, bounds);
            (void)combine_runs({runs[0], path}, folder + "/out.run", random() % 999, job);
            (void)combine_runs({path, path}, folder + "/out.run", 0, job);
            std::vector<TallyOutput> outputs(2);
            for (TallyOutput& output : outputs) {
                output.path = folder + "/out" + std::to_string(&output - outputs.data());
                output.order = fault ? 1 : header.lowest + random() % (header.highest - header.lowest + 1);
                output.slots = output.order;
                output.least = random() % 4;
                output.percent = random() % 101;
                output.max_count = random() % 3 ? 0 : 4;
                output.unique = random() % 2;
                output.firing = random() % 2;
            }
            const auto low = static_cast<std::int64_t>(random() % 100);
            (void)tally_runs({path}, low, kEnd, random() % 999, outputs, job);
            (void)tally_runs({path, runs[0], path}, 0, low, random() % 999, outputs, job);
        }
    }
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 2) fail("usage", "ngram_stress DIR [seed] [rounds]");
    const auto seed = static_cast<std::uint32_t>(argc > 2 ? std::atol(argv[2]) : 1);
    const int rounds = argc > 3 ? std::atoi(argv[3]) : 100;
    sound(argv[1], seed, rounds);
    Mutants seen;
    hostile(argv[1], seed, rounds, seen);
    std::printf("ngram_stress: seed %u, %d rounds, %d mutants refused, %d found damaged, %d passed: clean\n",
                seed, rounds, seen.refused, seen.damaged, seen.passed);
    return 0;
}
