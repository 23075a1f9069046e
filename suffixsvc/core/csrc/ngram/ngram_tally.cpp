#include "ngram/ngram_tally.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <optional>

#include "ngram/ngram_merge.h"
#include "ngram/ngram_run.h"

namespace suffixsvc {

namespace {

constexpr std::int32_t kMaxInt32 = std::numeric_limits<std::int32_t>::max();
constexpr std::uint64_t kEndCode = std::uint64_t{1} << 33;  // above every code

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
    void add(TallyOutput& output) { sinks_.push_back(std::make_unique<Sink>(output)); }
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
        for (const auto& sink : sinks_) {
            sink->output.occurrences += sum;
            cut(sink->output, followers_, sum, kept_);
            if (!kept_.empty()) write(*sink, sum);
        }
        followers_.clear();
    }
    void finish() {
        flush();
        for (const auto& sink : sinks_) {
            sink->output.bytes = sink->stream.offset();
            sink->stream.flush();
            sink->file.sync();
        }
    }
    void keep() {
        for (const auto& sink : sinks_) sink->file.keep();
    }

  private:
    struct Sink {
        explicit Sink(TallyOutput& its_output)
            : output(its_output), file(output.path, O_TRUNC, output.path.text), stream(file) {}
        TallyOutput& output;
        NewFile file;
        FileStream stream;
    };

    void write(Sink& sink, std::uint64_t sum) {
        TallyOutput& output = sink.output;
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
        sink.stream.put(record_.data(), record_.size() * sizeof(std::int32_t));
        ++output.records;
        output.pairs += kept_.size();
    }

    unsigned order_;
    std::array<std::uint32_t, kMaxOrder> ngram_{};
    std::vector<Follower> followers_;
    std::vector<Follower> kept_;
    std::vector<std::int32_t> record_;
    std::vector<std::unique_ptr<Sink>> sinks_;
};

// Runs of one shape.
struct Runs {
    explicit Runs(const std::vector<FilePath>& run_paths) : paths(run_paths) {
        if (paths.empty()) throw FileFault::invalid("runs must not be empty");
        for (const FilePath& path : paths) {
            headers.push_back(read_run_header(path));
            if (headers.back().shape() != headers[0].shape())
                throw FileFault::invalid("the run " + path.text + " must have the shape of the other runs");
            entries += headers.back().entries;
            tokens += headers.back().tokens;
        }
    }
    KeyShape shape() const { return headers[0].shape(); }

    const std::vector<FilePath>& paths;
    std::vector<RunHeader> headers;
    std::uint64_t entries = 0;
    std::uint64_t tokens = 0;
};

// Iterates over a merge of windows whose oldest token has a code from `low` to below `high`, and reports
// progress.
template <unsigned K, typename Use>
void for_each_merged(const Runs& runs, std::uint64_t low, std::uint64_t high, std::size_t memory_bytes,
                     SegmentJob& job, Use&& use) {
    constexpr std::uint64_t kPollInterval = 1u << 16;
    std::vector<RunReader<K>> readers;
    readers.reserve(runs.paths.size());
    std::uint64_t entries = 0;
    for (std::size_t i = 0; i < runs.paths.size(); ++i) {
        readers.emplace_back(runs.paths[i], runs.headers[i], low, high, memory_bytes / runs.paths.size());
        entries += readers.back().entries();
    }
    KWayMerge<K, RunReader<K>> merge(readers);
    Key<K> key;
    for (std::uint64_t seen = 0; !merge.done(); ++seen) {
        const std::uint64_t count = merge.take(key);
        use(key, count);
        if (seen % kPollInterval != 0) continue;
        job.poll();
        job.report(std::min(1.0, static_cast<double>(seen) / static_cast<double>(entries)));
    }
    job.report(1.0);
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

std::vector<OrderTally> group_by_order(std::vector<TallyOutput>& outputs) {
    std::vector<OrderTally> tallies;
    for (TallyOutput& output : outputs) {
        auto same = std::ranges::find(tallies, output.order, &OrderTally::order);
        if (same == tallies.end()) same = tallies.emplace(same, output.order);
        same->add(output);
    }
    return tallies;
}

}  // namespace

std::vector<TallyOutput> tally_runs(const std::vector<FilePath>& paths, std::vector<TallyOutput> outputs,
                                    std::int64_t low, std::int64_t high, std::size_t memory_bytes,
                                    SegmentJob& job) {
    const Runs runs(paths);
    const KeyShape shape = runs.shape();
    for (const TallyOutput& output : outputs) {
        if (output.order < shape.lowest || output.order > shape.highest)
            throw FileFault::invalid("order must be one that the runs count",
                                     std::to_string(shape.lowest) + " .. " + std::to_string(shape.highest),
                                     std::to_string(output.order));
        const unsigned least = output.order + (output.totals ? 1 : 0);
        if (output.slots < least || output.slots > kMaxOrder + 1)
            throw FileFault::invalid(
                "slots must hold the n-gram",
                std::to_string(least) + " .. " + std::to_string(kMaxOrder + 1) + " slots",
                std::to_string(output.slots));
    }
    if (low < 0 || low > high || high > std::int64_t{kMaxInt32} + 1)
        throw FileFault::invalid("token range must satisfy 0 <= first <= end <= 2147483648", "",
                                 std::to_string(low) + " .. " + std::to_string(high));
    std::vector<OrderTally> tallies = group_by_order(outputs);
    with_key_words(runs.headers[0].words, [&]<unsigned K>() {
        const KeyReader<K> reader(shape);
        for_each_merged<K>(runs, static_cast<std::uint64_t>(low + 1), static_cast<std::uint64_t>(high + 1),
                           memory_bytes, job, [&](const Key<K>& key, std::uint64_t count) {
                               feed(reader, shape.highest, key, count, tallies);
                           });
    });
    for (OrderTally& tally : tallies) tally.finish();
    for (OrderTally& tally : tallies) tally.keep();  // all of them or none
    return outputs;
}

void combine_runs(const std::vector<FilePath>& paths, const FilePath& path, std::size_t memory_bytes,
                  SegmentJob& job) {
    const Runs runs(paths);
    with_key_words(runs.headers[0].words, [&]<unsigned K>() {
        std::optional<RunWriter<K>> writer;  // created once all runs are open: an existing file is replaced
        for_each_merged<K>(runs, 0, kEndCode, memory_bytes, job, [&](const Key<K>& key, std::uint64_t count) {
            if (!writer) writer.emplace(path);
            writer->put(key, count);
        });
        if (!writer) writer.emplace(path);
        writer->finish(runs.shape(), runs.tokens);
    });
}

std::vector<std::int64_t> split_runs(const std::vector<FilePath>& paths, unsigned parts) {
    constexpr std::uint64_t kSamples = 4096;  // samples per run
    if (parts == 0) throw FileFault::invalid("parts must be at least 1", "", "0");
    const Runs runs(paths);
    // (token, entries that the sample represents)
    std::vector<std::pair<std::int64_t, std::uint64_t>> samples;
    with_key_words(runs.headers[0].words, [&]<unsigned K>() {
        const KeyReader<K> reader(runs.shape());
        for (std::size_t i = 0; i < paths.size(); ++i) {
            const std::uint64_t entries = runs.headers[i].entries;
            const std::uint64_t step = entries / kSamples + 1;
            RunReader<K> run(paths[i], runs.headers[i], 0, kEndCode, kEntryBytes<K>);
            for (std::uint64_t at = 0; at < entries; at += step)
                samples.emplace_back(std::int64_t{reader.code(run.at(at), 0)} - 1,
                                     std::min(step, entries - at));
        }
    });
    std::sort(samples.begin(), samples.end());
    std::vector<std::int64_t> tokens;
    std::uint64_t passed = 0;
    for (const auto& [token, weight] : samples) {
        const std::uint64_t due = (tokens.size() + 1) * runs.entries / parts;
        if (tokens.size() + 1 < parts && passed >= due && (tokens.empty() || tokens.back() < token))
            tokens.push_back(token);
        passed += weight;
    }
    return tokens;
}

}  // namespace suffixsvc
