#include "index/index.h"

#include <algorithm>
#include <array>
#include <bit>
#include <mutex>
#include <stdexcept>

namespace suffixsvc {

namespace {
constexpr std::int64_t kVisitsPerToken = 6;  // mean number of nodes that appending a token may touch
constexpr std::uint64_t kUnlimitedVisits = ~std::uint64_t{0};
constexpr std::int64_t kMaxCredit = 1 << 12;
constexpr std::int64_t kMaxDebt = 1 << 8;  // beyond it propagation stops after the first node
}  // namespace

Index::Index(std::uint32_t max_context, bool readers)
    : max_context_(std::max(1u, max_context)), nodes_(readers) {}

// ---- appending ----------------------------------------------------------------------------------

// A node represents the suffixes of its longest string that are longer than its link's string, `above`. The
// edges that lead to it therefore start in contexts of at least that length, and the walk ends there without
// a lookup.
std::uint64_t Index::redirect(NodeId p, Token token, NodeId from, NodeId to, std::uint32_t above) {
    std::uint64_t visited = 0;
    for (; p != kNoNode && len(p) >= above; p = link(p), ++visited) nodes_.replace(p, token, from, to);
    return visited;
}

NodeId Index::split(NodeId from, Token token, NodeId target) {
    const NodeId id = nodes_.make_full(len(from) + 1);
    nodes_.copy_edges(target, id);
    const std::int32_t count = nodes_.count(target);
    Body& b = *nodes_.body(id);
    b.writer = nodes_.writer(target);
    b.child_count = 1;
    b.child_xor = target;
    // The target's occurrences count here too, and what it had not propagated is propagated from here.
    b.count = count;
    b.pending = nodes_.pending(target);
    nodes_.set_counts(target, len(id) >= max_context_ ? 0 : count, 0);  // beyond max_context: not counted
    const NodeId up = link(target);
    nodes_.at(id)->link = up;  // complete: visible to readers
    nodes_.body(up)->child_xor ^= target ^ id;
    nodes_.at(target)->link = id;
    for (const NodeId each : {target, id, up}) changed(each);
    visited_ += redirect(from, token, target, id, len(up)) - 1;  // `from` was visited before
    return id;
}

Index::Extension Index::extend(NodeId last, Token token, std::uint32_t writer) {
    ++visited_;
    const std::uint32_t last_len = len(last);
    NodeId target = next(last, token);
    if (target != kNoNode) {
        if (Body* b = nodes_.body(last)) b->edges.recent = token;
        if (len(target) != last_len + 1) target = split(last, token, target);
        return {target, false};
    }
    const NodeId id = nodes_.make_plain(last_len + 1, writer);
    NodeId p = last;
    for (;;) {
        const NodeId up = link(p);
        if (up != kNoNode) nodes_.prefetch(up);
        target = nodes_.find_or_add(p, token, id);
        if (target != kNoNode) break;
        p = up;
        if (p == kNoNode) break;
        ++visited_;
    }
    NodeId up = kRoot;
    if (p != kNoNode) up = len(target) == len(p) + 1 ? target : split(p, token, target);
    nodes_.at(id)->link = up;  // from now on readers follow the edges to it
    Body& b = nodes_.promoted(up);
    b.child_count += 1;
    b.child_xor ^= id;
    for (const NodeId each : {id, up}) changed(each);
    return {id, true};
}

void Index::mark_writer(NodeId id, std::uint32_t writer) {
    // The writers of a node are a subset of its parent's. So once a node has this writer, or many, its
    // ancestors are up to date; each node changes to "many" once. The most recent of many writers is stored
    // in the longest context only: drafts are taken from there.
    for (; id != kRoot; id = link(id)) {
        const std::uint32_t known = nodes_.writer(id);
        if (known == writer) return;
        nodes_.promoted(id).writer = writer | kManyWriters;
        if (known & kManyWriters) return;
        ++visited_;
    }
}

std::uint32_t Index::random_hop_limit() {
    // Entry k has probability 2^-(k+1). The hash keeps long walks from synchronising with a periodic text.
    static constexpr std::uint32_t kHops[] = {2, 2, 2, 3, 3, 5, 8, 12, 18, 27, 41, 62};
    std::uint64_t x = ++draws_ * 0x9E3779B97F4A7C15u;
    x ^= x >> 32;
    x *= 0xD6E8FEB86659FD93u;
    x ^= x >> 32;
    const auto k = static_cast<std::uint32_t>(std::countr_zero(x));
    std::uint32_t drawn = k < std::size(kHops) ? kHops[k] : kAllLinks;
    if (drawn == 2 && visit_credit_ < -kMaxDebt) drawn = 1;
    return std::max(drawn,
                    static_cast<std::uint32_t>(std::clamp<std::int64_t>(visit_credit_, 0, max_context_)));
}

void Index::propagate(NodeId id, std::int32_t amount, std::uint32_t hops) {
    for (;;) {
        ++visited_;
        changed(id);
        if (id == kRoot) {
            nodes_.body(id)->count += amount;
            return;
        }
        const std::int32_t before = nodes_.pending(id);
        const std::int32_t carried = amount + before;
        const bool stops = --hops == 0;
        nodes_.set_counts(id, nodes_.count(id) + amount, stops ? carried : 0);
        num_pending_ += (stops && carried != 0) - (before != 0);
        const NodeId up = link(id);
        if (stops || carried == 0) return changed(up);
        amount = carried;
        id = up;
    }
}

void Index::charge_visits(std::uint64_t visited_before) {
    const auto touched = static_cast<std::int64_t>(visited_ - visited_before);
    visit_credit_ = std::min<std::int64_t>(visit_credit_ + kVisitsPerToken - touched, kMaxCredit);
    mutex.add_work(static_cast<std::uint64_t>(touched));
    published_used_.store(nodes_.used_bytes(), std::memory_order_relaxed);
    published_tokens_.store(tokens_ - repeated_, std::memory_order_relaxed);
}

void Index::append(TextEnd& text, Token token, bool counted, std::uint32_t writer,
                   std::span<const Token> context_tail) {
    const std::uint64_t before = visited_;
    const Extension extension = extend(text.last, token, writer);
    if (!extension.made) nodes_.promoted(extension.id).ends += 1;
    changed(extension.id);
    if (!counting_.empty()) [[unlikely]]
        record_continuation(text.last, extension.id, 1);
    const NodeId up = link(extension.id);
    mark_writer(extension.made ? up : extension.id, writer);
    text.last = extension.id;
    if (len(up) < max_context_) {
        // The node of the whole text is also that of its last max_context tokens.
        text.context = Cursor{extension.id, std::min(len(extension.id), max_context_)};
        text.epoch = epoch();
    } else {
        if (text.epoch != epoch()) {
            text.context = find(context_tail);
            text.epoch = epoch();
        }
        visited_ += advance(text.context, token);
    }
    if (counted) propagate(text.context.node, 1, random_hop_limit());
    ++tokens_;
    ++appended_;
    charge_visits(before);
    if (nodes_.due()) nodes_.collect();
}

// Prefetches the memory that inserting the next tokens will access: in a large index nearly every lookup is
// a cache miss. Each stage runs about one miss ahead of the next. The nodes are prefetched by the last token
// alone, which is where an insertion ends if its context is new; where most contexts are known prefetching
// is skipped.
class Index::Prefetcher {
  public:
    Prefetcher(const Nodes& nodes, std::span<const Token> tokens) : nodes_(nodes), tokens_(tokens) {
        found_.fill(kNoNode);
    }
    // To be called before token i is inserted; `known` is the length of the longest known context before it.
    void operator()(std::size_t i, std::uint32_t known) {
        new_ = new_ - new_ / 8 + (known <= 1 ? 32 : 0);
        if (new_ < 128 || i + kBucket >= tokens_.size()) return;
        nodes_.prefetch_bucket(kRoot, tokens_[i + kBucket]);
        nodes_.prefetch_edge(kRoot, tokens_[i + kEdge]);
        const NodeId id = nodes_.next(kRoot, tokens_[i + kNode]);
        found_[(i + kNode) % found_.size()] = id;
        if (id != kNoNode) nodes_.prefetch(id);
        if (const NodeId near = found_[(i + kFollowers) % found_.size()]; near != kNoNode)
            nodes_.prefetch_bucket(near, tokens_[i + kFollowers + 1]);
    }

  private:
    static constexpr std::size_t kBucket = 12, kEdge = 9, kNode = 6, kFollowers = 3;

    const Nodes& nodes_;
    std::span<const Token> tokens_;
    std::array<NodeId, 8> found_;
    std::uint32_t new_ = 0;  // decaying count of tokens with a new context, at most 256
};

// Returns the index of the first token not appended, which is less than `last` if the visits are used up.
std::size_t Index::append_part(TextEnd& text, std::span<const Token> tokens, std::size_t first,
                               std::size_t last, std::size_t uncounted, std::uint32_t writer,
                               std::uint64_t max_visits) {
    Prefetcher prefetcher(nodes_, tokens.first(last));
    const std::uint64_t before = visited_;
    std::size_t i = first;
    for (; i < last && visited_ - before < max_visits; ++i) {
        prefetcher(i, text.last == kRoot ? 0 : len(link(text.last)));
        append(text, tokens[i], i >= uncounted, writer, tokens.first(i));
    }
    return i;
}

void Index::append(TextEnd& text, std::span<const Token> tokens, std::size_t uncounted,
                   std::uint32_t writer) {
    append_part(text, tokens, 0, tokens.size(), uncounted, writer, kUnlimitedVisits);
}

std::vector<Piece> Index::pieces(std::size_t length, std::size_t uncounted) const {
    std::vector<Piece> out;
    for (std::size_t at = 0; at < length || out.empty(); at += kMaxText) {
        const std::size_t first = at > max_context_ ? at - max_context_ : 0;
        out.push_back(
            Piece{first, std::min(length, at + kMaxText), std::max(at, uncounted) - first, at - first});
    }
    return out;
}

void Index::begin_piece(TextEnd& text, std::span<const Token> context, std::uint32_t writer) {
    text = TextEnd{};
    text.epoch = epoch();
    append(text, context, context.size(), writer);
    repeated_ += context.size();
}

void Index::add(std::span<const Token> text, std::size_t uncounted, std::uint32_t writer) {
    if (writer & kManyWriters) throw std::invalid_argument("writer must be below 2**31");
    for (const Piece& piece : pieces(text.size(), uncounted)) {
        const auto part = text.subspan(piece.first, piece.last - piece.first);
        TextEnd end;
        for (std::size_t i = 0; i < part.size();) {
            {
                const std::scoped_lock lock(mutex);
                i = append_part(end, part, i, std::min(part.size(), i + kBatchTokens), piece.uncounted,
                                writer, kBatchVisits);
                if (i == part.size()) repeated_ += piece.repeated;
            }
            populate();
        }
    }
}

// Goes through the nodes page by page and propagates each pending count to the root. A split may move a
// pending count to a page that was passed, so there are several passes; concurrent writers add new pending
// counts all the time.
void Index::propagate_counts() {
    constexpr int kPasses = 3;
    for (int pass = 0; pass < kPasses; ++pass) {
        Nodes::PageCursor page;
        for (bool more = true; more;) {
            const std::scoped_lock lock(mutex);
            if (num_pending_ == 0) return;
            const std::uint64_t before = visited_;
            while (more && visited_ - before < kBatchVisits)
                more = nodes_.next_page(page, [this](NodeId id) {
                    ++visited_;
                    const std::int32_t pending = nodes_.pending(id);
                    if (id == kRoot || pending == 0) return;
                    nodes_.set_counts(id, nodes_.count(id), 0);
                    --num_pending_;
                    propagate(link(id), pending, kAllLinks);
                });
            mutex.add_work(visited_ - before);
            visited_ = before;
        }
    }
}

void Index::collect() {
    segments.reap();
    for (bool more = true; more;) {
        const std::scoped_lock lock(mutex);
        more = nodes_.collect();
    }
}

std::uint64_t Index::attributed_bytes(std::int64_t bytes, std::int64_t tokens) const {
    const std::uint64_t all = published_tokens_.load(std::memory_order_relaxed);
    const std::uint64_t used = published_used_.load(std::memory_order_relaxed);
    // The two counters may be from different moments.
    const double share =
        all == 0 ? 0.0 : static_cast<double>(std::max<std::int64_t>(tokens, 0)) / static_cast<double>(all);
    return static_cast<std::uint64_t>(std::max<std::int64_t>(bytes, 0)) +
           static_cast<std::uint64_t>(static_cast<double>(used) * std::min(1.0, share));
}

// ---- reading ------------------------------------------------------------------------------------

std::uint32_t Index::canonical(Cursor& cursor) const {
    std::uint32_t touched = 0;
    while (cursor.node != kRoot && cursor.len <= len(link(cursor.node))) {
        cursor.node = link(cursor.node);
        ++touched;
    }
    return touched;
}

std::uint32_t Index::advance(Cursor& cursor, Token token) const {
    std::uint32_t touched = 1 + canonical(cursor);
    if (cursor.len == max_context_) {
        --cursor.len;
        touched += canonical(cursor);
    }
    for (;;) {
        const NodeId to = next(cursor.node, token);
        if (to != kNoNode) {
            cursor.node = to;
            ++cursor.len;
            return touched;
        }
        if (cursor.node == kRoot) {
            cursor.len = 0;
            return touched;
        }
        cursor.node = link(cursor.node);
        cursor.len = len(cursor.node);
        ++touched;
    }
}

Cursor Index::find(std::span<const Token> context) const {
    Cursor cursor;
    if (context.size() > max_context_) context = context.last(max_context_);
    for (Token t : context) advance(cursor, t);
    return cursor;
}

}  // namespace suffixsvc
