#include "ngram/ngram_tally.h"

#include <algorithm>
#include <array>
#include <limits>
#include <memory>

#include "ngram/ngram_merge.h"
#include "ngram/ngram_run.h"
#include "ngram/ngram_words.h"

namespace suffixsvc {

namespace {

constexpr std::int32_t kMaxInt32 = std::numeric_limits<std::int32_t>::max();

struct Follower {
    Token token;
    std::uint64_t count;
};

bool fires(const TallyOutput& rule, std::uint64_t best, std::uint64_t sum) {
    return sum >= rule.least && 100 * best >= rule.percent * sum;
}

std::uint64_t sum_of(const std::vector<Follower>& followers) {
    std::uint64_t sum = 0;
    for (const Follower& f : followers) sum += f.count;
    return sum;
}

// Scales the counts so that the best one is `max_best`. Rounding down keeps a firing n-gram firing,
// rounding up keeps the others from firing; followers whose counts cannot go below 1 are dropped from the end
// while their sum prevents firing.
void scale(const TallyOutput& rule, std::vector<Follower>& kept, std::uint64_t max_best, bool fired) {
    const std::uint64_t best = kept[0].count;
    if (best <= max_best) return;
    for (Follower& f : kept) {
        const unsigned __int128 product = static_cast<unsigned __int128>(f.count) * max_best;
        const auto down = static_cast<std::uint64_t>(product / best);
        f.count = std::max<std::uint64_t>(1, fired || product % best == 0 ? down : down + 1);
    }
    std::uint64_t sum = sum_of(kept);
    while (fired && kept.size() > 1 && !fires(rule, kept[0].count, sum)) {
        sum -= kept.back().count;
        kept.pop_back();
    }
}

// Prunes the followers of an n-gram, best first; `kept` is empty if the record is dropped.
void cut(const TallyOutput& rule, const std::vector<Follower>& all, std::uint64_t sum,
         std::vector<Follower>& kept) {
    kept.clear();
    const bool fired = fires(rule, all[0].count, sum);
    if (rule.firing && !fired) return;
    for (const Follower& f : all) {
        if (f.count < rule.min_count || (rule.top > 0 && kept.size() == rule.top)) break;
        kept.push_back(f);
    }
    if (kept.empty()) return;
    const std::uint64_t left = sum_of(kept);
    if (fired && left < rule.least) kept[0].count += rule.least - left;
    if (!fired && fires(rule, kept[0].count, left)) return kept.clear();
    scale(rule, kept, rule.max_count > 0 ? rule.max_count : kMaxInt32, fired);
    if (rule.unique && fired && kept.size() > 1 && kept[0].count == kept[1].count) {
        if (kept[0].count < kMaxInt32)
            ++kept[0].count;
        else
            for (std::size_t i = 1; i < kept.size() && kept[i].count == kMaxInt32; ++i) --kept[i].count;
    }
}

// The files of one order; n-grams are added in ascending order.
class OrderTally {
  public:
    explicit OrderTally(unsigned order) : order_(order) {}
    unsigned order() const { return order_; }
    bool add(TallyOutput& output) {
        sinks_.push_back({&output, std::make_unique<StreamFile>()});
        return sinks_.back().file->create(output.path);
    }
    void count(const std::array<std::uint32_t, kMaxOrder + 1>& codes, std::uint64_t count) {
        if (!std::equal(codes.begin(), codes.begin() + order_, ngram_.begin())) {
            flush();
            std::copy_n(codes.begin(), order_, ngram_.begin());
        }
        const auto token = static_cast<Token>(codes[order_] - 1);
        if (!followers_.empty() && followers_.back().token == token)
            followers_.back().count += count;
        else
            followers_.push_back({token, count});
    }
    void flush() {
        if (followers_.empty()) return;
        const std::uint64_t sum = sum_of(followers_);
        std::sort(followers_.begin(), followers_.end(), [](const Follower& a, const Follower& b) {
            return a.count != b.count ? a.count > b.count : a.token < b.token;
        });
        for (Sink& sink : sinks_) {
            sink.output->occurrences += sum;
            cut(*sink.output, followers_, sum, kept_);
            if (!kept_.empty()) write(sink, sum);
        }
        followers_.clear();
    }
    bool finish(FileFault& fault) {
        flush();
        for (Sink& sink : sinks_) {
            sink.output->bytes = sink.file->size();
            if (!sink.file->finish() && !fault) fault = sink.file->fault();
        }
        return !fault;
    }
    void keep() {
        for (Sink& sink : sinks_) sink.file->keep();
    }
    const FileFault* fault() const {
        for (const Sink& sink : sinks_)
            if (sink.file->fault()) return &sink.file->fault();
        return nullptr;
    }

  private:
    struct Sink {
        TallyOutput* output;
        std::unique_ptr<StreamFile> file;
    };

    void write(Sink& sink, std::uint64_t sum) {
        TallyOutput& output = *sink.output;
        record_.assign(output.slots, -1);
        for (unsigned j = 0; j < order_; ++j) record_[j] = static_cast<Token>(ngram_[j] - 1);
        if (output.totals)
            record_[output.slots - 1] = static_cast<std::int32_t>(std::min<std::uint64_t>(sum, kMaxInt32));
        record_.push_back(static_cast<std::int32_t>(kept_.size()));
        for (const Follower& f : kept_) {
            record_.push_back(f.token);
            record_.push_back(static_cast<std::int32_t>(f.count));
            output.count_sum += f.count;
        }
        sink.file->put(record_.data(), record_.size() * sizeof(std::int32_t));
        ++output.records;
        output.pairs += kept_.size();
    }

    const unsigned order_;
    std::array<std::uint32_t, kMaxOrder> ngram_{};
    std::vector<Follower> followers_;
    std::vector<Follower> kept_;
    std::vector<std::int32_t> record_;
    std::vector<Sink> sinks_;
};

// Headers of runs of one shape.
struct Runs {
    std::vector<RunHeader> headers;
    std::uint64_t entries = 0;
    std::uint64_t tokens = 0;
};

FileFault read_headers(const std::vector<std::string>& paths, Runs& runs) {
    for (const std::string& path : paths) {
        FileFault fault;
        const RunHeader header = read_run_header(path, fault);
        if (fault) return fault;
        if (!runs.headers.empty() && !(header.shape() == runs.headers[0].shape()))
            return {FileFault::Kind::invalid, "the run " + path + " must have the shape of the other runs",
                    "", ""};
        runs.headers.push_back(header);
        runs.entries += header.entries;
        runs.tokens += header.tokens;
    }
    if (paths.empty()) return {FileFault::Kind::invalid, "runs must not be empty", "", ""};
    return {};
}

template <unsigned K>
FileFault open_all(const std::vector<std::string>& paths, const Runs& runs, std::uint64_t low,
                   std::uint64_t high, std::size_t memory_bytes, std::vector<RunReader<K>>& readers) {
    readers.reserve(paths.size());
    for (std::size_t i = 0; i < paths.size(); ++i) {
        readers.emplace_back();
        if (!readers.back().open(paths[i], runs.headers[i], low, high, memory_bytes / paths.size()))
            return readers.back().fault();
    }
    return {};
}

template <unsigned K>
std::uint64_t entries_of(const std::vector<RunReader<K>>& readers) {
    std::uint64_t entries = 0;
    for (const RunReader<K>& reader : readers) entries += reader.entries();
    return std::max<std::uint64_t>(1, entries);
}

// Iterates over a merge until `use(key, count)` returns false, and reports progress.
template <unsigned K, typename Use>
FileFault for_each_merged(std::vector<RunReader<K>>& readers, SegmentJob& job, Use&& use) {
    constexpr std::uint64_t kPollInterval = 1u << 16;
    const auto all = static_cast<double>(entries_of(readers));
    KWayMerge<K, RunReader<K>> merge(readers);
    Key<K> key;
    for (std::uint64_t seen = 0; !merge.done(); ++seen) {
        const std::uint64_t count = merge.take(key);
        if (!use(key, count)) break;
        if (seen % kPollInterval == 0) {
            if (job.cancelled.load(std::memory_order_relaxed))
                return {FileFault::Kind::cancelled, "merging runs was cancelled", "", ""};
            job.done.store(std::min(1.0, static_cast<double>(seen) / all), std::memory_order_relaxed);
        }
    }
    for (const RunReader<K>& reader : readers)
        if (reader.fault()) return reader.fault();
    job.done.store(1.0, std::memory_order_relaxed);
    return {};
}

// Adds a window to every order that it counts for.
template <unsigned K>
void feed(const KeyReader<K>& reader, unsigned highest, const Key<K>& key, std::uint64_t count,
          std::vector<OrderTally>& tallies) {
    const unsigned least = reader.least_order(key);
    std::array<std::uint32_t, kMaxOrder + 1> codes;
    for (unsigned j = 0; j <= highest; ++j) codes[j] = reader.code(key, j);
    for (OrderTally& tally : tallies)
        if (tally.order() >= least && codes[tally.order()] != 0) tally.count(codes, count);
}

bool group_by_order(std::vector<TallyOutput>& outputs, std::vector<OrderTally>& tallies, FileFault& fault) {
    for (TallyOutput& output : outputs) {
        auto same = std::find_if(tallies.begin(), tallies.end(),
                                 [&](const OrderTally& t) { return t.order() == output.order; });
        if (same == tallies.end()) {
            tallies.emplace_back(output.order);
            same = tallies.end() - 1;
        }
        if (!same->add(output)) {
            fault = *same->fault();
            return false;
        }
    }
    return true;
}

}  // namespace

FileFault tally_runs(const std::vector<std::string>& paths, std::int64_t low, std::int64_t high,
                     std::size_t memory_bytes, std::vector<TallyOutput>& outputs, SegmentJob& job) {
    Runs runs;
    if (FileFault fault = read_headers(paths, runs)) return fault;
    const KeyShape shape = runs.headers[0].shape();
    for (const TallyOutput& output : outputs) {
        if (output.order < shape.lowest || output.order > shape.highest)
            return {FileFault::Kind::invalid, "order must be one that the runs count",
                    std::to_string(shape.lowest) + " .. " + std::to_string(shape.highest),
                    std::to_string(output.order)};
        const unsigned least = output.order + (output.totals ? 1 : 0);
        if (output.slots < least || output.slots > kMaxOrder + 1)
            return {FileFault::Kind::invalid, "slots must hold the n-gram",
                    std::to_string(least) + " .. " + std::to_string(kMaxOrder + 1) + " slots",
                    std::to_string(output.slots)};
    }
    if (low < 0 || low > high || high > std::int64_t{kMaxInt32} + 1)
        return {FileFault::Kind::invalid, "token range must satisfy 0 <= first <= end <= 2147483648", "",
                std::to_string(low) + " .. " + std::to_string(high)};
    FileFault fault;
    std::vector<OrderTally> tallies;
    if (!group_by_order(outputs, tallies, fault)) return fault;
    return with_key_words(runs.headers[0].words, [&]<unsigned K>() -> FileFault {
        std::vector<RunReader<K>> readers;
        const auto from = static_cast<std::uint64_t>(low + 1);
        const auto to = static_cast<std::uint64_t>(high + 1);
        if (FileFault bad = open_all(paths, runs, from, to, memory_bytes, readers)) return bad;
        const KeyReader<K> reader(shape);
        std::uint64_t seen = 0;
        FileFault bad = for_each_merged(readers, job, [&](const Key<K>& key, std::uint64_t count) {
            feed(reader, shape.highest, key, count, tallies);
            if (++seen % (1u << 16) != 0) return true;
            return std::none_of(tallies.begin(), tallies.end(),
                                [](const OrderTally& t) { return t.fault() != nullptr; });
        });
        if (bad) return bad;
        for (OrderTally& tally : tallies)
            if (!tally.finish(bad)) return bad;
        for (OrderTally& tally : tallies) tally.keep();  // all of them or none
        return {};
    });
}

FileFault combine_runs(const std::vector<std::string>& paths, const std::string& path,
                       std::size_t memory_bytes, SegmentJob& job) {
    Runs runs;
    if (FileFault fault = read_headers(paths, runs)) return fault;
    return with_key_words(runs.headers[0].words, [&]<unsigned K>() -> FileFault {
        std::vector<RunReader<K>> readers;
        constexpr std::uint64_t kEnd = std::uint64_t{1} << 33;
        if (FileFault fault = open_all(paths, runs, 0, kEnd, memory_bytes, readers)) return fault;
        RunWriter<K> writer;
        if (!writer.create(path)) return writer.fault();
        const FileFault fault = for_each_merged(readers, job, [&](const Key<K>& key, std::uint64_t count) {
            writer.put(key, count);
            return !writer.fault();
        });
        if (fault) return fault;
        if (!writer.finish(runs.headers[0].shape(), runs.tokens)) return writer.fault();
        return {};
    });
}

FileFault split_runs(const std::vector<std::string>& paths, unsigned parts,
                     std::vector<std::int64_t>& tokens) {
    constexpr std::uint64_t kSamples = 4096;  // samples per run
    if (parts == 0) return {FileFault::Kind::invalid, "parts must be at least 1", "", "0"};
    Runs runs;
    if (FileFault fault = read_headers(paths, runs)) return fault;
    return with_key_words(runs.headers[0].words, [&]<unsigned K>() -> FileFault {
        const KeyReader<K> reader(runs.headers[0].shape());
        // (token, entries that the sample represents)
        std::vector<std::pair<std::int64_t, std::uint64_t>> samples;
        for (std::size_t i = 0; i < paths.size(); ++i) {
            const std::uint64_t entries = runs.headers[i].entries;
            const std::uint64_t step = entries / kSamples + 1;
            RunReader<K> run;
            if (!run.open(paths[i], runs.headers[i], 0, std::uint64_t{1} << 33, kEntryBytes<K>))
                return run.fault();
            for (std::uint64_t at = 0; at < entries; at += step) {
                Key<K> key;
                if (!run.at(at, key)) return run.fault();
                samples.emplace_back(std::int64_t{reader.code(key, 0)} - 1, std::min(step, entries - at));
            }
        }
        std::sort(samples.begin(), samples.end());
        std::uint64_t passed = 0;
        for (const auto& [token, weight] : samples) {
            const std::uint64_t due = (tokens.size() + 1) * runs.entries / parts;
            if (tokens.size() + 1 < parts && passed >= due && (tokens.empty() || tokens.back() < token))
                tokens.push_back(token);
            passed += weight;
        }
        return {};
    });
}

}  // namespace suffixsvc
