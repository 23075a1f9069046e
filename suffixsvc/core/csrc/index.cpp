#include "index.h"

#include <algorithm>
#include <array>
#include <bit>
#include <mutex>

namespace suffixsvc {

namespace {
constexpr std::int64_t kVisitsPerToken = 6;  // what appending may touch in the mean
constexpr std::uint64_t kAnyVisits = ~std::uint64_t{0};
constexpr std::int64_t kMostCredit = 1 << 12;
constexpr std::int64_t kMostDebt = 1 << 8;  // past it even the second node has to wait
}  // namespace

Index::Index(std::uint32_t max_context, bool readers)
    : max_context_(std::max(1u, max_context)), nodes_(readers) {}

// ---------------------------------------------------------------------------------------- growing

// A node has the strings of its longest one's ends that are longer than its link's, `above`. So the edges
// that lead to it come from the contexts of at least that length, and no look-up is needed to find where
// they end.
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
    b.kids = 1;
    b.kids_xor = target;
    // What reached the target counts here too; what it had not passed on is now ours to pass on.
    b.count = count;
    b.unsent = nodes_.unsent(target);
    nodes_.set_counts(target, len(id) >= max_context_ ? 0 : count, 0);  // beyond max_context: not counted
    const NodeId up = link(target);
    nodes_.at(id)->link = up;  // complete
    nodes_.body(up)->kids_xor ^= target ^ id;
    nodes_.at(target)->link = id;
    for (const NodeId each : {target, id, up}) changed(each);
    visited_ += redirect(from, token, target, id, len(up)) - 1;  // `from` was visited before
    return id;
}

Index::Grown Index::extend(NodeId last, Token token, std::uint32_t writer) {
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
    nodes_.at(id)->link = up;  // from now on readers follow the edges that lead here
    Body& b = nodes_.grown(up);
    b.kids += 1;
    b.kids_xor ^= id;
    for (const NodeId each : {id, up}) changed(each);
    return {id, true};
}

void Index::mark_writer(NodeId id, std::uint32_t writer) {
    // A node's writers are among its parent's. So where a node already has this writer, or many, all
    // above it are right; each node turns to "many" once. The newest of many is kept in the longest context
    // only: that is where drafts are taken from.
    for (; id != kRoot; id = link(id)) {
        const std::uint32_t known = nodes_.writer(id);
        if (known == writer) return;
        nodes_.grown(id).writer = writer | kManyWriters;
        if (known & kManyWriters) return;
        ++visited_;
    }
}

std::uint32_t Index::hops() {
    // Entry k has probability 2^-(k+1). The hash keeps the long ones from falling into step with a
    // periodic text.
    static constexpr std::uint32_t kHops[] = {2, 2, 2, 3, 3, 5, 8, 12, 18, 27, 41, 62};
    std::uint64_t x = ++ticks_ * 0x9E3779B97F4A7C15u;
    x ^= x >> 32;
    x *= 0xD6E8FEB86659FD93u;
    x ^= x >> 32;
    const auto k = static_cast<std::uint32_t>(std::countr_zero(x));
    std::uint32_t drawn = k < std::size(kHops) ? kHops[k] : kEveryLink;
    if (drawn == 2 && credit_ < -kMostDebt) drawn = 1;
    return std::max(drawn, static_cast<std::uint32_t>(std::clamp<std::int64_t>(credit_, 0, max_context_)));
}

void Index::carry(NodeId id, std::int32_t amount, std::uint32_t hops) {
    for (;;) {
        ++visited_;
        changed(id);
        if (id == kRoot) {
            nodes_.body(id)->count += amount;
            return;
        }
        const std::int32_t before = nodes_.unsent(id);
        const std::int32_t sent = amount + before;
        const bool stops = --hops == 0;
        nodes_.set_counts(id, nodes_.count(id) + amount, stops ? sent : 0);
        unsettled_ += (stops && sent != 0) - (before != 0);
        const NodeId up = link(id);
        if (stops || sent == 0) return changed(up);
        amount = sent;
        id = up;
    }
}

void Index::pay(std::uint64_t visited_before) {
    const auto touched = static_cast<std::int64_t>(visited_ - visited_before);
    credit_ = std::min<std::int64_t>(credit_ + kVisitsPerToken - touched, kMostCredit);
    mutex.did(static_cast<std::uint64_t>(touched));
    publish();
}

void Index::publish() {
    published_used_.store(nodes_.used_bytes(), std::memory_order_relaxed);
    published_tokens_.store(tokens_ - repeated_, std::memory_order_relaxed);
}

void Index::append(TextEnd& text, Token token, bool counted, std::uint32_t writer,
                   std::span<const Token> context_tail) {
    const std::uint64_t before = visited_;
    const Grown grown = extend(text.last, token, writer);
    if (!grown.made) nodes_.grown(grown.id).ends += 1;
    changed(grown.id);
    if (!counting_.empty()) [[unlikely]]
        note_continuation(text.last, grown.id, 1);
    const NodeId up = link(grown.id);
    mark_writer(grown.made ? up : grown.id, writer);
    text.last = grown.id;
    if (len(up) < max_context_) {
        // The node of the whole text is that of its last max_context tokens, too.
        text.context = Cursor{grown.id, std::min(len(grown.id), max_context_)};
        text.epoch = epoch();
    } else {
        if (text.epoch != epoch()) {
            text.context = find(context_tail);
            text.epoch = epoch();
        }
        visited_ += advance(text.context, token);
    }
    if (counted) carry(text.context.node, 1, hops());
    ++tokens_;
    ++appended_;
    pay(before);
    if (nodes_.due()) nodes_.collect();
}

// What the next tokens will need, fetched while the ones before them are inserted: in a large index nearly
// every look-up is a cache miss. Each step is about as far ahead as a miss takes. A token's own node is
// where its insertion ends if its context is new; where most contexts are known this would be in vain.
class Index::Ahead {
  public:
    Ahead(const Nodes& nodes, std::span<const Token> tokens) : nodes_(nodes), tokens_(tokens) {
        found_.fill(kNoNode);
    }
    // Before token i is inserted; `known` is the length of the longest known context before it.
    void operator()(std::size_t i, std::uint32_t known) {
        new_ = new_ - new_ / 8 + (known <= 1 ? 32 : 0);
        if (new_ < 128 || i + kSlot >= tokens_.size()) return;
        nodes_.prefetch_slot(kRoot, tokens_[i + kSlot]);
        nodes_.prefetch_edge(kRoot, tokens_[i + kEdge]);
        const NodeId id = nodes_.next(kRoot, tokens_[i + kNode]);
        found_[(i + kNode) % found_.size()] = id;
        if (id != kNoNode) nodes_.prefetch(id);
        if (const NodeId near = found_[(i + kFollowers) % found_.size()]; near != kNoNode)
            nodes_.prefetch_slot(near, tokens_[i + kFollowers + 1]);
    }

  private:
    static constexpr std::size_t kSlot = 12, kEdge = 9, kNode = 6, kFollowers = 3;

    const Nodes& nodes_;
    std::span<const Token> tokens_;
    std::array<NodeId, 8> found_;
    std::uint32_t new_ = 0;  // decaying, at most 256: tokens whose context was new
};

// Returns how far it came: the turn may be over before `last`.
std::size_t Index::append_part(TextEnd& text, std::span<const Token> tokens, std::size_t first,
                               std::size_t last, std::size_t uncounted, std::uint32_t writer,
                               std::uint64_t most_visits) {
    Ahead ahead(nodes_, tokens.first(last));
    const std::uint64_t before = visited_;
    std::size_t i = first;
    for (; i < last && visited_ - before < most_visits; ++i) {
        ahead(i, text.last == kRoot ? 0 : len(link(text.last)));
        append(text, tokens[i], i >= uncounted, writer, tokens.first(i));
    }
    return i;
}

void Index::append(TextEnd& text, std::span<const Token> tokens, std::size_t uncounted,
                   std::uint32_t writer) {
    append_part(text, tokens, 0, tokens.size(), uncounted, writer, kAnyVisits);
}

std::vector<Piece> Index::pieces(std::size_t length, std::size_t uncounted) const {
    std::vector<Piece> out;
    for (std::size_t at = 0; at < length || out.empty(); at += kMostText) {
        const std::size_t first = at > max_context_ ? at - max_context_ : 0;
        out.push_back(
            Piece{first, std::min(length, at + kMostText), std::max(at, uncounted) - first, at - first});
    }
    return out;
}

void Index::add(std::span<const Token> text, std::size_t uncounted, std::uint32_t writer) {
    for (const Piece& piece : pieces(text.size(), uncounted)) {
        TextEnd end;
        append(end, text.subspan(piece.first, piece.last - piece.first), piece.uncounted, writer);
        repeated_ += piece.repeated;
    }
}

void Index::begin_piece(TextEnd& text, std::span<const Token> context, std::uint32_t writer) {
    text = TextEnd{};
    text.epoch = epoch();
    append(text, context, context.size(), writer);
    repeated_ += context.size();
}

void Index::add_in_turns(std::span<const Token> text, std::size_t uncounted, std::uint32_t writer) {
    for (const Piece& piece : pieces(text.size(), uncounted)) {
        const auto part = text.subspan(piece.first, piece.last - piece.first);
        TextEnd end;
        for (std::size_t i = 0; i < part.size();) {
            {
                const std::scoped_lock turn(mutex);
                i = append_part(end, part, i, std::min(part.size(), i + kTurn), piece.uncounted, writer,
                                kTurnVisits);
                if (i == part.size()) repeated_ += piece.repeated;
            }
            populate();
        }
    }
}

// Page by page, each node's part all the way up. A split may move a part to a page that was passed, so the
// pages are gone through again; what is written meanwhile leaves new parts all the time.
void Index::settle() {
    constexpr int kPasses = 3;
    for (int pass = 0; pass < kPasses; ++pass) {
        Nodes::PageCursor page;
        for (bool more = true; more;) {
            const std::scoped_lock turn(mutex);
            if (unsettled_ == 0) return;
            const std::uint64_t before = visited_;
            while (more && visited_ - before < kTurnVisits)
                more = nodes_.next_page(page, [this](NodeId id) {
                    ++visited_;
                    const std::int32_t unsent = nodes_.unsent(id);
                    if (id == kRoot || unsent == 0) return;
                    nodes_.set_counts(id, nodes_.count(id), 0);
                    --unsettled_;
                    carry(link(id), unsent, kEveryLink);
                });
            mutex.did(visited_ - before);
            visited_ = before;
        }
    }
}

void Index::collect() {
    segments.reap();
    for (bool more = true; more;) {
        const std::scoped_lock turn(mutex);
        more = nodes_.collect();
    }
}

std::uint64_t Index::own_and_share(std::int64_t bytes, std::int64_t tokens) const {
    const std::uint64_t all = published_tokens_.load(std::memory_order_relaxed);
    const std::uint64_t used = published_used_.load(std::memory_order_relaxed);
    // A reader may see one number before it changed and another one after.
    const double share =
        all == 0 ? 0.0 : static_cast<double>(std::max<std::int64_t>(tokens, 0)) / static_cast<double>(all);
    return static_cast<std::uint64_t>(std::max<std::int64_t>(bytes, 0)) +
           static_cast<std::uint64_t>(static_cast<double>(used) * std::min(1.0, share));
}

// ---------------------------------------------------------------------------------------- reading

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
