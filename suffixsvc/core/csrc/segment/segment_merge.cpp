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
#include <memory>
#include <unordered_map>

#include "segment/segment.h"
#include "segment/segment_builder.h"

namespace suffixsvc {

namespace {

constexpr std::uint32_t kDropped = 0xFFFFFFFFu;

// A text of a source that is not forgotten.
struct RetainedText {
    std::uint32_t source;
    std::uint32_t text;
};

class Source {
  public:
    explicit Source(const Segment& segment)
        : segment_(segment),
          width_(segment.counts().code_bytes),
          text_(segment.column(Column::text)),
          order_(segment.column(Column::order)),
          next_(segment.column(Column::next)),
          lcp_(segment.column(Column::lcp)),
          starts_(copied<std::uint32_t>(Column::text_start)),
          buckets_(copied<std::uint32_t>(Column::buckets)),
          contexts_(copied<std::uint8_t>(Column::text_context)),
          ages_(copied<std::uint64_t>(Column::text_age)),
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
                  buckets_.back() == c.entries && std::is_sorted(buckets_.begin(), buckets_.end());
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
    bool broken() const { return broken_; }
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
            if (position_ == 0 || position_ >= segment_.counts().text) {
                broken_ = true;
                return;
            }
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

    template <typename T>
    std::vector<T> copied(Column column) const {
        const auto values = segment_.values<T>(column);
        return {values.begin(), values.end()};
    }

    const Segment& segment_;
    std::uint32_t width_;
    const std::uint8_t *text_, *order_, *next_, *lcp_;
    // Copies: values that lead to memory are read once (segment/segment.h).
    std::vector<std::uint32_t> starts_, buckets_;
    std::vector<std::uint8_t> contexts_;
    std::vector<std::uint64_t> ages_;
    std::uint32_t entry_ = 0, position_ = 0, new_position_ = 0, source_follower_ = 0, bucket_ = 0;
    bool broken_ = false;

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
        for (const Segment* s : segments) sources_.push_back(std::make_unique<Source>(*s));
    }

    bool intact() const {
        return std::all_of(sources_.begin(), sources_.end(), [](const auto& s) { return s->intact(); });
    }
    // Determines the retained texts, in order of age; equal ones once.
    void plan_texts();
    bool plan_alphabet();  // false: a source is damaged
    bool write_texts(SegmentWriter& writer, const SegmentLayout& layout, std::uint32_t width);
    // False: a source is damaged, or the writer failed, or the job was cancelled.
    bool write_entries(SegmentWriter& writer, const SegmentLayout& layout, const SegmentCounts& counts,
                       SegmentJob& job);

    TextTable table;
    std::vector<Token> ids;
    std::vector<std::uint32_t> buckets;
    std::uint64_t positions = 1, entries = 0;

  private:
    bool equal(const RetainedText& a, const RetainedText& b) const;
    std::uint64_t hash(const RetainedText& k) const;
    std::size_t smallest();
    bool less(std::size_t a, std::size_t b, std::uint32_t& shared) const;

    std::vector<std::unique_ptr<Source>> sources_;
    std::vector<RetainedText> retained_;
    std::vector<std::uint32_t> shared_after_;  // scratch memory of smallest()
};

std::uint64_t Merger::hash(const RetainedText& k) const {
    const Source& s = *sources_[k.source];
    std::uint64_t h = s.context(k.text) + 0x9E3779B97F4A7C15ull;
    for (std::uint32_t p = s.begin(k.text); p < s.end(k.text); ++p)
        h = (h ^ static_cast<std::uint32_t>(s.id(s.code(p)))) * 0xff51afd7ed558ccdull, h ^= h >> 29;
    return h;
}

bool Merger::equal(const RetainedText& a, const RetainedText& b) const {
    const Source &s = *sources_[a.source], &t = *sources_[b.source];
    const std::uint32_t size = s.end(a.text) - s.begin(a.text);
    if (s.context(a.text) != t.context(b.text) || size != t.end(b.text) - t.begin(b.text)) return false;
    for (std::uint32_t i = 0; i < size; ++i)
        if (s.id(s.code(s.begin(a.text) + i)) != t.id(t.code(t.begin(b.text) + i))) return false;
    return true;
}

void Merger::plan_texts() {
    std::vector<RetainedText> all;
    for (std::uint32_t i = 0; i < sources_.size(); ++i) {
        std::vector<bool> retained(sources_[i]->start_of.size());
        for (const SegmentOccurrence& o : sources_[i]->occurrences) retained[o.text] = true;
        for (std::uint32_t t = 0; t < retained.size(); ++t)
            if (retained[t]) all.push_back({i, t});
    }
    const auto age = [&](const RetainedText& k) { return sources_[k.source]->age(k.text); };
    std::stable_sort(all.begin(), all.end(),
                     [&](const RetainedText& a, const RetainedText& b) { return age(a) < age(b); });
    // From the newest on, so that the newest of equal texts is retained.
    constexpr std::uint32_t kItself = 0xFFFFFFFFu;
    std::vector<std::uint32_t> same_as(all.size(), kItself);
    std::unordered_multimap<std::uint64_t, std::uint32_t> known;
    known.reserve(all.size());
    for (std::size_t i = all.size(); i-- > 0;) {
        const std::uint64_t h = hash(all[i]);
        const auto [first, last] = known.equal_range(h);
        const auto same =
            std::find_if(first, last, [&](const auto& e) { return equal(all[e.second], all[i]); });
        if (same == last)
            known.emplace(h, static_cast<std::uint32_t>(i));
        else
            same_as[i] = same->second;
    }
    std::vector<std::uint32_t> place(all.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
        if (same_as[i] != kItself) continue;
        const Source& s = *sources_[all[i].source];
        place[i] = static_cast<std::uint32_t>(retained_.size());
        retained_.push_back(all[i]);
        table.start.push_back(static_cast<std::uint32_t>(positions));
        table.context.push_back(s.context(all[i].text));
        table.age.push_back(s.age(all[i].text));
        const std::uint32_t size = s.end(all[i].text) - s.begin(all[i].text);
        positions += std::uint64_t{size} + 1;
        entries += size - s.context(all[i].text);
    }
    table.start.push_back(static_cast<std::uint32_t>(positions));
    std::vector<std::vector<std::uint32_t>> new_text(sources_.size());
    for (std::size_t i = 0; i < sources_.size(); ++i) new_text[i].resize(sources_[i]->start_of.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
        const std::uint32_t text = place[same_as[i] == kItself ? i : same_as[i]];
        new_text[all[i].source][all[i].text] = text;
        if (same_as[i] == kItself) sources_[all[i].source]->start_of[all[i].text] = table.start[text];
    }
    std::vector<SegmentOccurrence> occurrences;
    for (std::size_t i = 0; i < sources_.size(); ++i) {
        for (const SegmentOccurrence& o : sources_[i]->occurrences)
            occurrences.push_back({o.lsn, new_text[i][o.text]});
        sources_[i]->occurrences = {};
    }
    std::sort(occurrences.begin(), occurrences.end());
    for (const SegmentOccurrence& o : occurrences) {
        table.occ_lsn.push_back(o.lsn);
        table.occ_text.push_back(o.text);
    }
}

bool Merger::plan_alphabet() {
    IdSet set;
    for (const RetainedText& k : retained_) {
        Source& s = *sources_[k.source];
        for (std::uint32_t p = s.begin(k.text); p < s.end(k.text); ++p) {
            const std::uint32_t code = s.code(p);
            const Token id = s.id(code);
            if (id < 0) return false;
            if (s.recode[code] == 0) set.add(id);
            s.recode[code] = 1;
        }
    }
    ids = set.sorted();
    const Alphabet alphabet(ids);
    for (auto& s : sources_)
        for (std::uint32_t code = 1; code < s->recode.size(); ++code)
            if (s->recode[code]) s->recode[code] = alphabet.code(s->id(code));
    return true;
}

bool Merger::write_texts(SegmentWriter& writer, const SegmentLayout& layout, std::uint32_t width) {
    ColumnStream text(writer, layout[Column::text].offset);
    text.put_code(0, width);
    for (const RetainedText& k : retained_) {
        const Source& s = *sources_[k.source];
        for (std::uint32_t p = s.begin(k.text); p < s.end(k.text); ++p)
            text.put_code(s.recode[s.code(p)], width);
        text.put_code(0, width);
    }
    return text.flush();
}

// Whether a's next entry sorts before b's; `shared` is the number of shared tokens, in: a known lower bound,
// out: exact.
bool Merger::less(std::size_t a, std::size_t b, std::uint32_t& shared) const {
    const Source &s = *sources_[a], &t = *sources_[b];
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
        if (sources_[i]->finished()) continue;
        shared_after_[i] = sources_[i]->shared;
        if (best == kNone) {
            best = i;
            continue;
        }
        std::uint32_t common = std::min(sources_[i]->shared, sources_[best]->shared);
        bool first = sources_[i]->shared > sources_[best]->shared;
        if (sources_[i]->shared == sources_[best]->shared) first = less(i, best, common);
        if (first) {
            for (std::size_t j = 0; j < i; ++j) shared_after_[j] = std::min(shared_after_[j], common);
            shared_after_[best] = common;
            best = i;
        } else {
            shared_after_[i] = common;
        }
    }
    for (std::size_t i = 0; i < sources_.size(); ++i)
        if (i != best && !sources_[i]->finished()) sources_[i]->shared = shared_after_[i];
    return best;
}

bool Merger::write_entries(SegmentWriter& writer, const SegmentLayout& layout, const SegmentCounts& counts,
                           SegmentJob& job) {
    ColumnStream order(writer, layout[Column::order].offset), next(writer, layout[Column::next].offset),
        lcp(writer, layout[Column::lcp].offset);
    buckets.assign(ids.size() + 2, 0);
    shared_after_.assign(sources_.size(), 0);
    for (auto& s : sources_) s->advance(true);
    std::uint64_t written = 0;
    const auto any_broken = [&] {
        return std::any_of(sources_.begin(), sources_.end(), [](const auto& s) { return s->broken(); });
    };
    if (any_broken()) return false;
    for (; written < counts.entries; ++written) {
        if (written % 65536 == 0) {
            if (job.cancelled.load(std::memory_order_relaxed)) return writer.cancel();
            if (writer.fault()) return false;
            job.done.store(0.1 + 0.8 * static_cast<double>(written) / counts.entries,
                           std::memory_order_relaxed);
        }
        const std::size_t best = smallest();
        if (best >= sources_.size()) return false;
        Source& s = *sources_[best];
        order.put(s.new_position());
        next.put_code(s.follower(), counts.code_bytes);
        lcp.put(static_cast<std::uint8_t>(written == 0 ? 0 : s.shared));
        ++buckets[s.bucket() + 1];
        s.advance();
        if (s.broken()) return false;
    }
    for (const auto& s : sources_)
        if (!s->finished()) return false;
    for (std::size_t c = 0; c + 1 < buckets.size(); ++c) buckets[c + 1] += buckets[c];
    return order.flush() && next.flush() && lcp.flush();
}

}  // namespace

FileFault merge_segments(const std::string& path, std::span<const Segment* const> sources,
                         const SegmentOptions& options, SegmentJob& job) {
    const auto corrupt = [](const std::string& name) {
        return FileFault{FileFault::Kind::corrupt, "segment file " + name + ": cannot be merged",
                         "a segment that check() accepts", "a damaged one"};
    };
    for (const Segment* s : sources)
        if (s->corrupt() || !s->touch_all()) return corrupt(s->path());
    // A source is damaged; the checksums tell which one.
    const auto damaged = [&] {
        for (const Segment* s : sources)
            if (!s->verify_all()) return corrupt(s->path());
        return corrupt(sources.empty() ? path : sources.front()->path());
    };
    Merger merger(sources);
    if (!merger.intact()) return damaged();
    merger.plan_texts();
    if (merger.positions > kSegmentMaxText)
        return {FileFault::Kind::invalid, "the positions of a segment must be limited",
                "at most " + std::to_string(kSegmentMaxText), std::to_string(merger.positions)};
    if (!merger.plan_alphabet()) return damaged();
    SegmentHeader header;
    header.counts.alphabet = static_cast<std::uint32_t>(merger.ids.size());
    header.counts.code_bytes = code_bytes_for(header.counts.alphabet);
    header.counts.text = static_cast<std::uint32_t>(merger.positions);
    header.counts.entries = static_cast<std::uint32_t>(merger.entries);
    const SegmentLayout layout = layout_of(header.counts);
    SegmentWriter writer;
    if (!writer.open(path)) return writer.fault();
    if (!merger.write_texts(writer, layout, header.counts.code_bytes) ||
        !merger.write_entries(writer, layout, header.counts, job))
        return writer.fault() ? writer.fault() : damaged();
    // Pages that were lost meanwhile were read as zeros, which must not get into the new file.
    for (const Segment* s : sources)
        if (!s->verify_all()) return corrupt(s->path());
    finish_segment(writer, header, merger.ids, merger.buckets, merger.table, options, job);
    return writer.fault();
}

}  // namespace suffixsvc
