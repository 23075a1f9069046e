// n-gram counting: counters with minimal memory, runs that are merged and tallied in parts, compared with a
// map; then mutated runs, most with correct checksums, which may be refused or give wrong counts, but must
// not crash, hang or trip a sanitizer.
#include <cstring>
#include <limits>
#include <map>

#include "base/files/crc32c.h"
#include "common.h"
#include "ngram/ngram_counter.h"
#include "ngram/ngram_run.h"
#include "ngram/ngram_tally.h"

namespace suffixsvc {

namespace {

using Ngram = std::vector<Token>;
using Follows = std::map<Ngram, std::map<Token, std::int32_t>>;

constexpr std::int64_t kEnd = std::int64_t{1} << 31;

struct Counted {
    Counted(std::mt19937& random, bool large)
        : highest(1 + random() % kMaxOrder),
          lowest(1 + random() % highest),
          largest_token(large ? std::numeric_limits<Token>::max() : 100'000) {}

    unsigned highest, lowest;
    Token largest_token;
};

// Counts texts into several runs, and n-grams of one order into `follows`.
std::vector<FilePath> count(std::mt19937& random, const std::string& folder, const Counted& counted,
                            std::size_t texts, unsigned order, Follows& follows) {
    const std::unique_ptr<NgramCounter> counter = NgramCounter::make(
        counted.lowest, counted.highest, counted.largest_token, 5 * (1u << 10) * 8 * kMaxKeyWords);
    std::vector<FilePath> runs;
    const auto spill = [&] {
        runs.push_back(folder + "/" + std::to_string(runs.size()) + ".run");
        counter->spill(runs.back());
    };
    for (std::size_t k = 0; k < texts; ++k) {
        std::vector<Token> text = adversarial_text(random, 400);
        for (Token& t : text) t = std::min(t, counted.largest_token);
        const std::size_t first = random() % 3 ? 0 : random() % (text.size() + 1);
        if (text.size() > counter->room() || random() % 40 == 0) spill();
        const auto end = static_cast<std::int64_t>(text.size()), context = static_cast<std::int64_t>(first);
        counter->add(text, {&end, 1}, {&context, 1});
        for (std::size_t i = std::max<std::size_t>(first, order); i < text.size(); ++i)
            ++follows[{text.begin() + static_cast<std::ptrdiff_t>(i - order),
                       text.begin() + static_cast<std::ptrdiff_t>(i)}][text[i]];
    }
    spill();
    return runs;
}

std::string tally(const std::vector<FilePath>& runs, unsigned order, const std::string& path, unsigned parts,
                  std::size_t memory) {
    std::vector<std::int64_t> bounds = split_runs(runs, parts);
    bounds.insert(bounds.begin(), 0);
    bounds.push_back(kEnd);
    Threads threads;
    for (std::size_t i = 0; i + 1 < bounds.size(); ++i)
        threads.emplace_back([&, i] {
            SegmentJob job;
            const TallyOutput output{.path = path + std::to_string(i), .order = order, .slots = order};
            tally_runs(runs, {output}, bounds[i], bounds[i + 1], memory, job);
        });
    threads.clear();
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
        const Counted counted(random, round % 2);
        const unsigned order = counted.lowest + random() % (counted.highest - counted.lowest + 1);
        Follows follows;
        const std::vector<FilePath> runs = count(random, folder, counted, 1 + random() % 60, order, follows);
        const std::string wanted = expected(follows);
        if (tally(runs, order, folder + "/apart", 1 + random() % 4, random() % 9999) != wanted)
            fail("tally", "not what was counted, round " + std::to_string(round));
        SegmentJob job;
        const FilePath combined = folder + "/combined.run";
        combine_runs(runs, combined, random() % 9999, job);
        check_run(combined);
        if (tally({combined}, order, folder + "/whole", 3, 1 << 16) != wanted)
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
    std::uint32_t word;
    std::memcpy(&word, bytes.data() + at, 4);
    word = nasty(random, word);
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

// Whether an operation throws a fault; any other exception ends the program.
template <typename Operation>
bool refuses(Operation&& operation) {
    try {
        operation();
        return false;
    } catch (const FileFault& fault) {
        require(!fault.message.empty(), "ngrams: refused without a reason");
        return true;
    }
}

void hostile(const std::string& folder, std::uint32_t seed, int rounds) {
    const FilePath path = folder + "/mutant.run", out = folder + "/out.run";
    for (int round = 0; round < rounds; ++round) {
        std::mt19937 random(seed * 13 + static_cast<std::uint32_t>(round));
        const Counted counted(random, round % 2);
        Follows follows;
        const std::vector<FilePath> runs =
            count(random, folder, counted, 1 + random() % 8, counted.lowest, follows);
        const std::string sound_run = read_file(runs[0].text);
        for (int k = 0; k < 20; ++k) {
            std::string bytes = sound_run;
            for (std::uint32_t times = 1 + random() % 3; times > 0; --times) mutate(random, bytes);
            if (random() % 4 != 0) repair_checksums(bytes);
            write_file(path.text, bytes);
            SegmentJob job;
            RunHeader header{.lowest = 1, .highest = 1};
            const bool refused = refuses([&] { header = read_run_header(path); });
            if (!refuses([&] { check_run(path); }) && refused)
                fail("check", "accepts what the header refuses");
            (void)refuses([&] { split_runs({path, runs[0]}, 3); });
            (void)refuses([&] { combine_runs({runs[0], path}, out, random() % 999, job); });
            (void)refuses([&] { combine_runs({path, path}, out, 0, job); });
            std::vector<TallyOutput> outputs(2);
            for (TallyOutput& output : outputs) {
                output.path = folder + "/out" + std::to_string(&output - outputs.data());
                output.order = header.lowest + random() % (header.highest - header.lowest + 1);
                output.slots = output.order;
                output.least = random() % 4;
                output.percent = random() % 101;
                output.max_count = random() % 3 ? 0 : 4;
                output.unique = random() % 2;
                output.firing = random() % 2;
            }
            const auto low = static_cast<std::int64_t>(random() % 100);
            (void)refuses([&] { tally_runs({path}, outputs, low, kEnd, random() % 999, job); });
            (void)refuses([&] { tally_runs({path, runs[0], path}, outputs, 0, low, random() % 999, job); });
        }
    }
}

}  // namespace

void stress_ngrams(const StressArguments& arguments) {
    sound(arguments.folder, arguments.seed, arguments.rounds / 2);
    hostile(arguments.folder, arguments.seed, arguments.rounds / 2);
}

}  // namespace suffixsvc
