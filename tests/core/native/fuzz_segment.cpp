// Fuzzer of segment files: mutates them and calls every operation. A mutant may be refused, be found corrupt
// later, or give results; it must not crash, hang or trip a sanitizer. Most mutants get correct checksums, so
// that the validation after the checksums is reached. The current mutant is DIR/mutant.seg.
//
//   fuzz_segment DIR SECONDS [SEED] [SEGMENT FILES ...]
#include <chrono>
#include <cstring>

#include "base/files/crc32c.h"
#include "common.h"

using namespace suffixsvc;

namespace {

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

enum Outcome { refused, corrupt, sound };

Outcome use(const std::string& folder, std::mt19937& random, const Segment& other) {
    std::shared_ptr<Segment> segment;
    try {
        segment = Segment::open(folder + "/mutant.seg");
    } catch (const FileFault& fault) {
        if (fault.message.empty()) fail("open", "refused without a reason");
        return refused;
    }
    const auto query = [&] {
        for (std::size_t k = 0; k < 20; ++k) {
            Text context = adversarial_text(random, 80);
            if (const std::uint32_t alphabet = segment->counts().alphabet; k % 2 && alphabet > 0)
                for (Token& t : context)
                    t = segment->alphabet().id(1 + static_cast<std::uint32_t>(t) % alphabet);
            SegmentView view;
            query_all(*segment, context, 1 + k % 4, view);
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
    const Segment* sources[] = {segment.get(), &other};
    std::shared_ptr<Segment> merged;
    try {
        merged = merge(folder + "/merged.seg", sources, 2);
    } catch (const FileFault& fault) {
        if (fault.kind != FileFault::Kind::corrupt && fault.kind != FileFault::Kind::invalid)
            fail("merge", fault.message + ": " + fault.got);
    }
    if (!segment->check().empty()) return corrupt;
    if (!segment->corrupt()) {
        if (!merged) fail("merge", "a segment that check() accepts is refused");
        require_sound(*merged);
    }
    return sound;
}

}  // namespace

int main(int argc, char** argv) try {
    if (argc < 3) fail("usage", "fuzz_segment DIR SECONDS [SEED] [SEGMENT FILES ...]");
    const std::string folder = argv[1];
    const auto seed = static_cast<std::uint32_t>(argc > 3 ? std::atol(argv[3]) : 1);
    std::mt19937 random(seed);
    std::vector<std::string> corpus;
    for (int i = 4; i < argc; ++i) corpus.push_back(read_file(argv[i]));
    std::shared_ptr<Segment> other;
    for (std::size_t i = 0; i < 12; ++i) {
        other = build(folder + "/other.seg", random, 1, 1 + i % 6, i % 3 == 2 ? 1500 : 100, i % 2 ? 2 : 0);
        corpus.push_back(read_file(folder + "/other.seg"));
    }
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(std::atol(argv[2]));
    std::uint64_t outcomes[3] = {};
    while (std::chrono::steady_clock::now() < until) {
        std::string bytes = corpus[random() % corpus.size()];
        for (std::uint32_t k = random() % 8 ? 1 : 1 + random() % 20; k > 0; --k)
            mutate(random, bytes, corpus[random() % corpus.size()]);
        if (random() % 50 == 0) bytes.resize(random() % (bytes.size() + 100));
        if (random() % 10 != 0) repair_checksums(bytes);
        write_file(folder + "/mutant.seg", bytes);
        ++outcomes[use(folder, random, *other)];
    }
    std::printf("fuzz_segment: seed %u, mutants: %llu refused, %llu found corrupt, %llu sound\n", seed,
                static_cast<unsigned long long>(outcomes[refused]),
                static_cast<unsigned long long>(outcomes[corrupt]),
                static_cast<unsigned long long>(outcomes[sound]));
    return 0;
} catch (const std::exception& error) {
    fail("exception", error.what());
}
