// Fuzzer of segment files: mutates them and calls every operation. A mutant may be refused, be found corrupt
// later, or give results; it must not crash, hang or trip a sanitizer. Most mutants get correct checksums, so
// that the validation after the checksums is reached. The current mutant is DIR/mutant.seg.
//
//   fuzz_segment DIR SECONDS [SEED] [SEGMENT FILES ...]
#include <chrono>
#include <cstring>

#include "base/crc32c.h"
#include "segment/segment.h"
#include "segment_inputs.h"

using namespace suffixsvc;

namespace {

constexpr int kOrders[] = {1, 2, 3, 4, 5, 6, 8, 11, 16, 24};

// Repairs the checksums of a modified file, as far as it is long enough.
void repair_checksums(std::string& bytes) {
    if (bytes.size() < sizeof(SegmentHeader)) return;
    SegmentHeader h;
    std::memcpy(&h, bytes.data(), sizeof h);
    const SegmentLayout layout = layout_of(h.counts);
    if (layout.file_bytes == bytes.size()) {
        const std::uint64_t end = layout[Column::sums].offset;
        std::vector<std::uint32_t> sums;
        for (std::uint64_t at = sizeof h; at < end; at += kSegmentBlock)
            sums.push_back(crc32c(bytes.data() + at, std::min<std::uint64_t>(kSegmentBlock, end - at)));
        std::memcpy(bytes.data() + end, sums.data(), sums.size() * 4);
        h.sums_crc = crc32c(sums.data(), sums.size() * 4);
        h.file_bytes = bytes.size();
    }
    h.crc = crc32c(&h, sizeof h - 4);
    std::memcpy(bytes.data(), &h, sizeof h);
}

std::uint32_t nasty(std::mt19937& random, std::uint32_t old) {
    switch (random() % 8) {
        case 0:
            return 0;
        case 1:
            return 0xFFFFFFFFu;
        case 2:
            return old + 1;
        case 3:
            return old - 1;
        case 4:
            return old ^ (1u << random() % 32);
        case 5:
            return 0x7FFFFFFFu;
        case 6:
            return static_cast<std::uint32_t>(random() % 100);
        default:
            return static_cast<std::uint32_t>(random());
    }
}

// Mutates a file, mostly one number of one column.
void mutate(std::mt19937& random, std::string& bytes, const std::string& other) {
    SegmentHeader h;
    std::memcpy(&h, bytes.data(), sizeof h);
    const SegmentLayout layout = layout_of(h.counts);
    std::uint64_t begin = 0, size = bytes.size();
    if (random() % 8 != 0 && layout.file_bytes == bytes.size()) {
        const auto& extent = layout.columns[random() % kColumns];
        if (extent.bytes >= 4) {
            begin = extent.offset;
            size = extent.bytes;
        }
    } else if (random() % 3 == 0) {
        begin = 32;  // the counts
        size = 32;
    }
    const std::uint64_t at = begin + random() % (size - 3) / 4 * 4;
    std::uint32_t word;
    std::memcpy(&word, bytes.data() + at, 4);
    switch (random() % 6) {
        case 0:
            bytes[begin + random() % size] = static_cast<char>(random());
            break;
        case 1: {  // a piece of another file, or from another offset
            const std::size_t from = random() % other.size();
            const std::size_t n =
                std::min<std::size_t>({1 + random() % 64, other.size() - from, bytes.size() - at});
            bytes.replace(at, n, other, from, n);
            break;
        }
        case 2: {  // swap two numbers
            const std::uint64_t to = begin + random() % (size - 3) / 4 * 4;
            for (int i = 0; i < 4; ++i)
                std::swap(bytes[at + static_cast<std::uint64_t>(i)],
                          bytes[to + static_cast<std::uint64_t>(i)]);
            break;
        }
        default:
            word = nasty(random, word);
            std::memcpy(bytes.data() + at, &word, 4);
    }
}

struct Outcome {
    bool refused = false, corrupt = false, sound = false;
};

Outcome use(const std::string& folder, std::mt19937& random, const Segment& other) {
    FileFault fault;
    const std::unique_ptr<Segment> segment = Segment::open(folder + "/mutant.seg", fault);
    if (!segment) {
        if (!fault || fault.message.empty()) fail("open", "refused without a reason");
        return {true, false, false};
    }
    const auto query = [&] {
        for (int k = 0; k < 20; ++k) {
            std::vector<Token> context = adversarial_text(random, 80);
            if (k % 2 && segment->counts().alphabet > 0)
                for (Token& t : context)
                    t = segment->alphabet().id(1 +
                                               static_cast<std::uint32_t>(t) % segment->counts().alphabet);
            SegmentView view;
            for (std::size_t n = context.size() - context.size() % 3; n <= context.size(); ++n)
                segment->find(std::span(context).first(n), kOrders, view, &view);
            SegmentEvidence evidence;
            segment->gather(view, 1 + static_cast<std::size_t>(k) % 4, evidence);
            for (std::size_t c = 0; c < evidence.size; ++c)
                if (evidence.token[c] < 0) fail("gather", "a candidate is not a token id");
            std::array<std::uint32_t, kMaxLevels> votes;
            segment->votes(view, evidence.size > 0 ? evidence.token[0] : 3, votes);
            std::uint32_t longer = 65;
            for (const SegmentLevel& level : view.all()) {
                if (level.len == 0 || level.len >= longer) fail("find", "levels do not get shorter");
                if (level.begin >= level.end || level.end > segment->counts().entries)
                    fail("find", "a level is not an interval");
                longer = level.len;
                (void)segment->total(level);
                (void)segment->newest(level);
                const Token token = evidence.size > 0 ? evidence.token[0] : 3;
                if (const std::uint32_t at = segment->newest_of(level, token); at != 0) {
                    segment->record_use(at);
                    (void)segment->age_at(at);
                    (void)segment->token_at(at + 1);
                }
            }
        }
    };
    query();
    std::vector<std::uint64_t> lsns;
    for (const SegmentOccurrence& o : segment->occurrences())
        if (random() % 3 == 0) lsns.push_back(o.lsn);
    segment->forget(lsns);
    query();
    (void)segment->take_recently_used();
    segment->correct_hubs(100);
    query();
    SegmentJob job;
    const Segment* sources[] = {segment.get(), &other};
    const FileFault merged = merge_segments(folder + "/merged.seg", sources, {2}, job);
    if (merged && merged.kind != FileFault::Kind::corrupt && merged.kind != FileFault::Kind::invalid)
        fail("merge", merged.message + ": " + merged.got);
    const bool sound = segment->check().empty();
    if (sound && !segment->corrupt()) {
        if (merged) fail("merge", "a segment that check() accepts is refused");
        const std::unique_ptr<Segment> result = Segment::open(folder + "/merged.seg", fault);
        if (!result) fail("merge", fault.message);
        if (const std::string what = result->check(); !what.empty())
            fail("merge", "the result is broken: " + what);
    }
    return {false, !sound, sound};
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 3) fail("usage", "fuzz_segment DIR SECONDS [SEED] [SEGMENT FILES ...]");
    const std::string folder = argv[1];
    const auto seed = static_cast<std::uint32_t>(argc > 3 ? std::atol(argv[3]) : 1);
    std::mt19937 random(seed);
    std::vector<std::string> corpus;
    for (int i = 4; i < argc; ++i) corpus.push_back(read_file(argv[i]));
    for (std::size_t i = 0; i < 12; ++i) {
        build(folder + "/mutant.seg", adversarial_texts(random, 1, 1 + i % 6, i % 3 == 2 ? 1500 : 100),
              i % 2 ? 2 : 0);
        corpus.push_back(read_file(folder + "/mutant.seg"));
    }
    write_file(folder + "/other.seg", corpus.back());
    FileFault fault;
    const std::unique_ptr<Segment> other = Segment::open(folder + "/other.seg", fault);
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(std::atol(argv[2]));
    std::uint64_t mutants = 0, refused = 0, corrupt = 0, sound = 0;
    while (std::chrono::steady_clock::now() < until) {
        std::string bytes = corpus[random() % corpus.size()];
        for (std::uint32_t k = random() % 8 ? 1 : 1 + random() % 20; k > 0; --k)
            mutate(random, bytes, corpus[random() % corpus.size()]);
        if (random() % 50 == 0) bytes.resize(random() % (bytes.size() + 100));
        if (random() % 10 != 0) repair_checksums(bytes);
        write_file(folder + "/mutant.seg", bytes);
        const Outcome outcome = use(folder, random, *other);
        ++mutants;
        refused += outcome.refused;
        corrupt += outcome.corrupt;
        sound += outcome.sound;
    }
    std::printf("fuzz_segment: seed %u, %llu mutants: %llu refused, %llu found corrupt, %llu sound\n", seed,
                static_cast<unsigned long long>(mutants), static_cast<unsigned long long>(refused),
                static_cast<unsigned long long>(corrupt), static_cast<unsigned long long>(sound));
    return 0;
}
