// Merges segments: first the texts (which are retained, and where), then one pass over the entries of all
// sources in sorted order.
//
// The pass compares little. The number of context tokens that every source's next entry shares with the entry
// written last (`shared`) is known: from the lcp column, or from the comparison that it lost. The entry that
// shares most comes next; only entries that share equally many are compared, from there on.
//
//   written   c b a        A  c b a ..   shared 3   <- next, with lcp 3
//                          B  c b x ..   shared 2
//                          C  d ..       shared 0
#include <algorithm>

#include "segment/build/segment_builder.h"
#include "segment/query/segment.h"

namespace suffixsvc {

namespace {

constexpr std::uint32_t kDropped = 0xFFFFFFFFu;

// A text of a source that is not forgotten.
struct RetainedText {
    std::uint32_t source;
    std::uint32_t text;
};

// A source is damaged.
struct Damaged {};

class Source {
  public:
    explicit Source(const Segment& segment)
        : segment_(segment),
          width_(segment.counts().code_bytes),
          text_(segment.column(Column::text)),
          order_(segment.column(Column::order)),
          next_(segment.column(Column::next)),
          lcp_(segment.column(Column::lcp)),
          starts_(segment.copied<std::uint32_t>(Column::text_start)),
          buckets_(segment.copied<std::uint32_t>(Column::buckets)),
          contexts_(segment.copied<std::uint8_t>(Column::text_context)),
          ages_(segment.copied<std::uint64_t>(Column::text_age)),
          occurrences(segment.occurrences()),
          start_of(segment.counts().texts, kDropped),
          recode(std::size_t{segment.counts().alphabet} + 1, 0) {}

    std::uint32_t begin(std::uint32_t text) const { return starts_[text]; }
    std::uint32_t end(std::uint32_t text) const { return starts_[text + 1] - 1; }  // end of its tokens
    std::uint8_t context(std::uint32_t text) const { return contexts_[text]; }
    std::uint64_t age(std::uint32_t text) const { return ages_[text]; }
    // Whether the tables are still consistent, as they were when the segment was opened.
    bool intact() const {
        const SegmentCounts& c = segment_.counts();
        bool ok = starts_.front() == 1 && starts_.back() == c.text && buckets_.front() == 0 &&
                  buckets_.back() == c.entries && std::ranges::is_sorted(buckets_);
        for (std::size_t t = 0; ok && t < contexts_.size(); ++t)
            ok = starts_[t] < starts_[t + 1] && starts_[t + 1] - starts_[t] >= 2u + contexts_[t];
        return ok;
    }
    std::uint32_t code(std::uint32_t position) const { return load_code(text_, width_, position); }
    // The id of a code of the alphabet; -1 for any other code.
    Token id(std::uint32_t code) const {
        return code >= 1 && code <= segment_.counts().alphabet ? segment_.alphabet().id(code) : -1;
    }

    // ---- the pass -------------------------------------------------------------------------------
    bool finished() const { return entry_ == segment_.counts().entries; }
    std::uint32_t position() const { return position_; }          // of the next entry, in this source
    std::uint32_t new_position() const { return new_position_; }  // and in the result
    std::uint32_t follower() const {
        return recode[std::min<std::size_t>(source_follower_, recode.size() - 1)];
    }
    std::uint32_t bucket() const { return recode[bucket_]; }
    // A context token of the next entry as a code of the result; 0 after the context's end.
    std::uint32_t context_code(std::uint32_t i) const {
        if (i >= position_) return 0;
        const std::uint32_t code = load_code(text_, width_, position_ - 1 - i);
        return code < recode.size() ? recode[code] : 0;
    }
    // Advances to the first retained entry (`first`), or to the next one.
    void advance(bool first = false) {
        if (!first) {
            ++entry_;
            shared = kSegmentContext;
        }
        for (; !finished(); ++entry_) {
            if (!first || entry_ > 0) shared = std::min<std::uint32_t>(shared, lcp_[entry_]);
            if (entry_ + kAhead < segment_.counts().entries) prefetch(entry_ + kAhead);
            std::memcpy(&position_, order_ + std::size_t{entry_} * 4, 4);
            if (position_ == 0 || position_ >= segment_.counts().text) throw Damaged();
            const std::uint32_t text = segment_.text_map().at(position_);
            if (start_of[text] == kDropped) continue;
            while (buckets_[bucket_ + 1] <= entry_) ++bucket_;
            source_follower_ = load_code(next_, width_, entry_);
            new_position_ = start_of[text] + (position_ - starts_[text]);
            return;
        }
    }

  private:
    static constexpr std::uint32_t kAhead = 8;
    void prefetch(std::uint32_t entry) const {
        std::uint32_t p;
        std::memcpy(&p, order_ + std::size_t{entry} * 4, 4);
        __builtin_prefetch(text_ + std::uint64_t{p} * width_ - 1);
    }

    const Segment& segment_;
    std::uint32_t width_;
    const std::uint8_t *text_, *order_, *next_, *lcp_;
    // Copies: values that lead to memory are read once (segment/query/segment.h).
    std::vector<std::uint32_t> starts_, buckets_;
    std::vector<std::uint8_t> contexts_;
    std::vector<std::uint64_t> ages_;
    std::uint32_t entry_ = 0, position_ = 0, new_position_ = 0, source_follower_ = 0, bucket_ = 0;

  public:
    std::vector<SegmentOccurrence> occurrences;  // retained occurrences, as of the beginning of the merge
    std::vector<std::uint32_t> start_of;         // new start of a text, or kDropped
    std::vector<std::uint32_t> recode;           // codes of the source -> of the result; 0: not in the result
    // context tokens that the next entry shares with the one written last
    std::uint32_t shared = 0;
};

class Merger {
  public:
    explicit Merger(std::span<const Segment* const> segments) {
        for (const Segment* s : segments) {
            sources_.emplace_back(*s);
            if (!sources_.back().intact()) throw Damaged();
        }
    }

    // Determines the retained texts, in order of age; equal ones once.
    TextTable plan_texts();
    std::vector<Token> plan_alphabet();
    void write_texts(FileStream text, std::uint32_t width);
    // Returns the buckets.
    std::vector<std::uint32_t> write_entries(SegmentWriter& writer, const SegmentLayout& layout,
                                             const SegmentCounts& counts, SegmentJob& job);

  private:
    std::size_t smallest();
    bool less(std::size_t a, std::size_t b, std::uint32_t& shared) const;

    std::vector<Source> sources_;
    std::vector<RetainedText> retained_;
    std::vector<std::uint32_t> shared_after_;  // scratch memory of smallest()
};

TextTable Merger::plan_texts() {
    std::vector<RetainedText> all;
    std::vector<TextCandidate> candidates;
    std::vector<SegmentOccurrence> occurrences;
    for (std::uint32_t i = 0; i < sources_.size(); ++i) {
        const Source& s = sources_[i];
        std::vector<std::uint32_t> number(s.start_of.size(), kDropped);
        for (const SegmentOccurrence& o : s.occurrences) number[o.text] = 0;
        for (std::uint32_t t = 0; t < number.size(); ++t) {
            if (number[t] == kDropped) continue;
            number[t] = static_cast<std::uint32_t>(all.size());
            all.push_back({i, t});
            // Not the age of the newest retained output: texts would change places, and the pass over the
            // entries needs those of each source in the order that they have there.
            candidates.push_back({s.age(t), s.end(t) - s.begin(t), s.context(t)});
        }
        for (const SegmentOccurrence& o : s.occurrences) occurrences.push_back({o.lsn, number[o.text]});
        sources_[i].occurrences = {};
    }
    TextTable table(candidates, std::move(occurrences), [&](std::uint32_t c, std::uint32_t i) {
        const Source& s = sources_[all[c].source];
        return s.id(s.code(s.begin(all[c].text) + i));
    });
    for (std::size_t i = 0; i < table.candidates.size(); ++i) {
        retained_.push_back(all[table.candidates[i]]);
        sources_[retained_[i].source].start_of[retained_[i].text] = table.start[i];
    }
    return table;
}

std::vector<Token> Merger::plan_alphabet() {
    IdSet set;
    for (const RetainedText& k : retained_) {
        Source& s = sources_[k.source];
        for (std::uint32_t p = s.begin(k.text); p < s.end(k.text); ++p) {
            const std::uint32_t code = s.code(p);
            const Token id = s.id(code);
            if (id < 0) throw Damaged();
            if (s.recode[code] == 0) set.add(id);
            s.recode[code] = 1;
        }
    }
    std::vector<Token> ids = set.sorted();
    const Alphabet alphabet(ids);
    for (Source& s : sources_)
        for (std::uint32_t code = 1; code < s.recode.size(); ++code)
            if (s.recode[code]) s.recode[code] = alphabet.code(s.id(code));
    return ids;
}

void Merger::write_texts(FileStream text, std::uint32_t width) {
    put_code(text, 0, width);
    for (const RetainedText& k : retained_) {
        const Source& s = sources_[k.source];
        for (std::uint32_t p = s.begin(k.text); p < s.end(k.text); ++p)
            put_code(text, s.recode[s.code(p)], width);
        put_code(text, 0, width);
    }
    text.flush();
}

// Whether a's next entry sorts before b's; `shared` is the number of shared tokens, in: a known lower bound,
// out: exact.
bool Merger::less(std::size_t a, std::size_t b, std::uint32_t& shared) const {
    const Source &s = sources_[a], &t = sources_[b];
    for (; shared < kSegmentContext; ++shared) {
        const std::uint32_t x = s.context_code(shared), y = t.context_code(shared);
        if (x != y) return x < y;
        if (x == 0) break;
    }
    return s.new_position() < t.new_position();
}

// The source whose next entry sorts first; `shared` of the others becomes what they share with that entry.
std::size_t Merger::smallest() {
    constexpr std::size_t kNone = static_cast<std::size_t>(-1);
    std::size_t best = kNone;
    for (std::size_t i = 0; i < sources_.size(); ++i) {
        if (sources_[i].finished()) continue;
        shared_after_[i] = sources_[i].shared;
        if (best == kNone) {
            best = i;
            continue;
        }
        std::uint32_t common = std::min(sources_[i].shared, sources_[best].shared);
        bool first = sources_[i].shared > sources_[best].shared;
        if (sources_[i].shared == sources_[best].shared) first = less(i, best, common);
        if (first) {
            for (std::size_t j = 0; j < i; ++j) shared_after_[j] = std::min(shared_after_[j], common);
            shared_after_[best] = common;
            best = i;
        } else {
            shared_after_[i] = common;
        }
    }
    if (best == kNone) throw Damaged();  // fewer entries than the retained texts have
    for (std::size_t i = 0; i < sources_.size(); ++i)
        if (i != best && !sources_[i].finished()) sources_[i].shared = shared_after_[i];
    return best;
}

std::vector<std::uint32_t> Merger::write_entries(SegmentWriter& writer, const SegmentLayout& layout,
                                                 const SegmentCounts& counts, SegmentJob& job) {
    FileStream order = writer.stream(layout[Column::order]), next = writer.stream(layout[Column::next]),
               lcp = writer.stream(layout[Column::lcp]);
    std::vector<std::uint32_t> buckets(std::size_t{counts.alphabet} + 2);
    shared_after_.assign(sources_.size(), 0);
    for (Source& s : sources_) s.advance(true);
    for (std::uint32_t written = 0; written < counts.entries; ++written) {
        if (written % 65536 == 0) {
            job.poll();
            job.report(0.1 + 0.8 * static_cast<double>(written) / counts.entries);
        }
        Source& s = sources_[smallest()];
        put_code(order, s.new_position(), 4);
        put_code(next, s.follower(), counts.code_bytes);
        put_code(lcp, written == 0 ? 0 : s.shared, 1);
        ++buckets[s.bucket() + 1];
        s.advance();
    }
    if (!std::ranges::all_of(sources_, &Source::finished)) throw Damaged();
    for (std::size_t c = 0; c + 1 < buckets.size(); ++c) buckets[c + 1] += buckets[c];
    for (FileStream* each : {&order, &next, &lcp}) each->flush();
    return buckets;
}

}  // namespace

void merge_segments(const FilePath& path, std::span<const Segment* const> sources, std::uint32_t hub_min,
                    SegmentJob& job) {
    require_hub_min(hub_min);
    const auto corrupt = [](const std::string& name) {
        return FileFault(FileFault::Kind::corrupt, "segment file " + name + ": cannot be merged",
                         "a segment that check() accepts", "a damaged one");
    };
    for (const Segment* s : sources)
        if (s->corrupt() || !s->touch_all()) throw corrupt(s->path());
    // Pages that were lost meanwhile were read as zeros, which must not get into the new file.
    const auto verify_all = [&] {
        for (const Segment* s : sources)
            if (!s->verify_all()) throw corrupt(s->path());
    };
    try {
        Merger merger(sources);
        const TextTable texts = merger.plan_texts();
        if (texts.positions > kSegmentMaxText)
            throw FileFault::invalid("the positions of a segment must be limited",
                                     "at most " + std::to_string(kSegmentMaxText),
                                     std::to_string(texts.positions));
        const std::vector<Token> ids = merger.plan_alphabet();
        const SegmentHeader header = header_of(texts, static_cast<std::uint32_t>(ids.size()));
        const SegmentLayout layout = layout_of(header.counts);
        SegmentWriter writer(path);
        merger.write_texts(writer.stream(layout[Column::text]), header.counts.code_bytes);
        const auto buckets = merger.write_entries(writer, layout, header.counts, job);
        verify_all();
        finish_segment(writer, header, ids, buckets, texts, hub_min, job);
    } catch (const Damaged&) {
        verify_all();  // the checksums tell which one
        throw corrupt(sources.empty() ? path.text : sources.front()->path());
    }
}

}  // namespace suffixsvc
