// The hot index: a generalised suffix tree of the reversed texts, grown one token at a time.
//
// A node stands for a set of contexts that always end at the same places; its string is the longest of
// them. Its parent (`link`) is the next shorter context that was also seen elsewhere, so the way to the
// root visits each distinct match length once. Its edges (in the literature: Weiner links, or the
// transitions of the directed acyclic word graph) lead to the context made longer by one next token,
// whose count is how often that token came next.
//
//        texts  "a b c" and "x b c"                 after "x b c" grew by "d"
//
//        root ── b ── ab                            edges:  c  --d-->  cd
//          │      └── xb                                    bc --d-->  cd      one node for d, cd, bcd
//          └──── bc ── abc        (c and bc end at          xbc -d-->  xbcd
//                  └── xbc         the same places)
//
// Why reversed: a text that grows adds one leaf that is complete at once (its context is already
// written), so any number of sessions can write into one tree while all of them are drafted from.
// A suffix tree of the forward texts would have open leaves that writers take from each other.
//
// Growing by a token is online construction of the graph (Blumer et al. 1985): walk up from the text's
// last node until a context knows the token, split that node's target where it holds longer strings
// too. Taking the last token of a text away undoes exactly that: the node goes if nothing ends in it,
// and a node left with one child and no text ending in it is merged into the child. `kids_xor` names
// that child without a list of children. Removing a text runs from its last token to its first.
//
//        remove "x b c d":   xbcd goes;  its parent keeps one child: merge
//
//        cd ── bcd' ...      P ─┬─ gone            P has one child left and no text ends in it:
//          └── xbcd             └─ ch     =>       P's strings join ch, edges to P now lead to ch
//
// Counts. An occurrence counts in every node on the way to the root: exact counting would touch all of
// them for every token. Here it is added at the context of `max_context` tokens and carried up some
// links; each node keeps what it has not passed on (`unsent`), and later arrivals carry it further.
// How far a token carries is what a budget of node visits per token allows (most inputs leave room for
// the whole way), hardly ever less than two nodes, and now and then, by chance, the whole way. So the mean
// number of nodes touched is bounded on every input, whatever the depth, and short contexts lag behind
// only where there is no time. settle() passes on all that is left; after it counts are exact. Contexts
// longer than `max_context` are not counted.
//
// Threads: Index::mutex is shared for readers and exclusive for writers; callers take it.
#pragma once

#include <cstdint>
#include <shared_mutex>
#include <span>
#include <string>
#include <vector>

#include "edges.h"

namespace suffixsvc {

inline constexpr NodeId kRoot = 0;
// Evidence from more than one writer.
inline constexpr std::uint32_t kManyWriters = 0xFFFFFFFFu;

// What is kept of every node, 20 bytes. Most nodes are plain: one text ends there, no other node's link
// leads there, and at most one token followed. The others have a block (edges.h) for the rest.
struct Node {
    std::uint32_t head;    // length of the longest string, 28 bits; flags. 0: dead or free (or the root)
    NodeId link;           // root: none. In a dead node: the node that took its strings over
    std::uint32_t writer;  // the one writer of all its occurrences, or kManyWriters
    Edge one;              // plain: its edge, to kNoNode where nothing followed. Others: {count, BlockRef}

    static constexpr std::uint32_t kMostLen = (1u << 28) - 1;
    static constexpr std::uint32_t kHasBlock = 1u << 31;
    static constexpr std::uint32_t kCounted = 1u << 30;  // plain: count is 1
    static constexpr std::uint32_t kUnsent = 1u << 29;   // plain: unsent is 1

    std::uint32_t len() const { return head & kMostLen; }
    bool has_block() const { return head >> 31 != 0; }
};
static_assert(sizeof(Node) == 20);

// A node as readers see it.
struct NodeView {
    std::uint32_t len;     // length of the longest string
    NodeId link;           // root: none
    std::int32_t count;    // occurrences that reached this node; 0 beyond max_context
    std::uint32_t writer;  // the one writer of all its occurrences, or kManyWriters
    std::uint32_t fanout;  // edges
    Token recent;          // the token that last followed it, as far as growing touched it; or -1
};

// A place in the tree: the node that holds the last `len` tokens of some context.
struct Cursor {
    NodeId node = kRoot;
    std::uint32_t len = 0;
};

// A text that can grow. Tokens of weight 0 are context only: they are matched but not counted.
struct TextEnd {
    NodeId last = kRoot;      // the node whose string is the whole text
    Cursor context;           // its last max_context tokens
    std::uint64_t epoch = 0;  // Index::epoch() the context is valid for
};

struct IndexStats {
    std::uint64_t nodes = 0;
    std::uint64_t edges = 0;
    std::uint64_t tokens = 0;    // positions of all live texts, context-only ones included
    std::uint64_t bytes = 0;     // memory of nodes and edges, spare included
    std::uint64_t appended = 0;  // tokens ever appended
    std::uint64_t visited = 0;   // nodes ever touched by appending
};

class Index {
  public:
    explicit Index(std::uint32_t max_context = 64);
    Index(const Index&) = delete;
    Index& operator=(const Index&) = delete;

    mutable std::shared_mutex mutex;

    // ---- growing; exclusive lock -----------------------------------------------------------------
    // `text` must be a text of this index that nothing was removed from. O(1) nodes amortised.
    // `context_tail` are the text's last tokens (at most max_context are looked at), needed where a
    // removal made text.context stale.
    void append(TextEnd& text, Token token, bool counted, std::uint32_t writer,
                std::span<const Token> context_tail);
    // Many tokens at once, the first `uncounted` of them context only. Nothing may have been removed since
    // the text was begun.
    void append(TextEnd& text, std::span<const Token> tokens, std::size_t uncounted, std::uint32_t writer);
    // A whole text at once; the first `uncounted` tokens are context only.
    void add(std::span<const Token> text, std::size_t uncounted, std::uint32_t writer);
    // Undoes add, or the appends of a text that grew to exactly this. False where no such text is there
    // (nothing is changed then).
    bool remove(std::span<const Token> text, std::size_t uncounted);
    // Makes every count exact.
    void settle();

    // ---- reading; shared lock --------------------------------------------------------------------
    std::uint32_t max_context() const { return max_context_; }
    // Changes whenever cursors may have become stale; find() them again then.
    std::uint64_t epoch() const { return epoch_; }
    NodeView node(NodeId id) const {
        const Node* n = at(id);
        if (!n->has_block()) {
            const bool followed = n->one.to != kNoNode;
            return {n->len(),  n->link,  (n->head & Node::kCounted) != 0,
                    n->writer, followed, followed ? n->one.token : -1};
        }
        const Block* b = block(n);
        return {n->len(), n->link, n->one.token, n->writer, b->size, b->recent};
    }
    NodeId next(NodeId id, Token token) const {
        const Node* n = at(id);
        if (!n->has_block()) return n->one.token == token ? n->one.to : kNoNode;
        return pool_.find(block(n), token);
    }
    // In insertion order; valid until the next write.
    std::span<const Edge> edges(NodeId id) const {
        const Node* n = at(id);
        if (!n->has_block()) return {&n->one, n->one.to != kNoNode ? 1u : 0u};
        const Block* b = block(n);
        return {b->edges(), b->size};
    }
    // Moves a cursor by one token to the longest suffix that is known, at most max_context long.
    // Returns how many nodes were touched.
    std::uint32_t advance(Cursor& cursor, Token token) const;
    // The cursor of the longest known suffix of a context.
    Cursor find(std::span<const Token> context) const;
    // Occurrences of exactly these tokens (at most max_context of them); exact after settle().
    std::uint64_t count(std::span<const Token> tokens) const;
    // All n-grams with their counts, flat: n tokens each. Exact after settle().
    void ngrams(std::uint32_t n, std::vector<Token>& tokens, std::vector<std::uint64_t>& counts) const;
    bool settled() const { return unsettled_ == 0; }
    IndexStats stats() const;
    // Walks everything; returns the first broken invariant, or an empty string.
    std::string check() const;

  private:
    struct Grown {
        NodeId id;
        bool made;  // a new plain node, its end included
    };

    Node* at(NodeId id) { return reinterpret_cast<Node*>(nodes_.at(id)); }
    const Node* at(NodeId id) const { return reinterpret_cast<const Node*>(nodes_.at(id)); }
    std::uint32_t len(NodeId id) const { return at(id)->len(); }
    Block* block(const Node* n) const { return pool_.block(n->one.to); }
    // The node's block; a plain node is given one.
    Block* with_block(Node* n);
    void make_plain(Node* n);
    std::int32_t count_of(const Node* n) const;
    std::int32_t unsent_of(const Node* n) const;
    std::uint32_t ends_of(const Node* n) const;
    void set_counts(Node* n, std::int32_t count, std::int32_t unsent);

    NodeId make(std::uint32_t len, std::uint32_t writer);
    void free_later(NodeId id, NodeId heir);
    NodeId find_or_add(NodeId id, Token token, NodeId to);
    bool replace(NodeId id, Token token, NodeId from, NodeId to);
    bool erase(NodeId id, Token token, NodeId to);

    Grown extend(NodeId last, Token token, std::uint32_t writer);
    NodeId split(NodeId from, Token token, NodeId target);
    void mark_writer(NodeId id, std::uint32_t writer);
    void carry(NodeId id, std::int32_t amount, std::uint32_t hops);
    std::uint32_t hops();
    std::uint32_t canonical(Cursor& cursor) const;
    void grow(TextEnd& text, Token token, bool counted, std::uint32_t writer,
              std::span<const Token> context_tail);
    bool is_text(std::span<const Token> text, std::vector<NodeId>& path) const;
    void drop_last(NodeId node, NodeId before, Token token);
    void merge_into_child(NodeId id, NodeId from, Token token);
    void reset();
    template <typename F>
    void for_each_node(F&& f) const {
        nodes_.for_each_span([&](NodeId first, std::uint32_t fresh, std::uint32_t) {
            for (NodeId id = first; id < first + fresh; ++id)
                if (id == kRoot || at(id)->head != 0) f(id, *at(id));
        });
    }

    std::uint32_t max_context_;
    Slab<20, 1024> nodes_;
    EdgePool pool_;
    std::vector<NodeId> dead_;  // freed by the removal under way
    std::uint64_t epoch_ = 1;
    std::uint64_t ticks_ = 0;
    std::int64_t credit_ = 0;     // node visits left over from cheap tokens
    std::int64_t unsettled_ = 0;  // nodes with unsent != 0
    std::uint64_t tokens_ = 0;
    std::uint64_t live_ = 0;
    std::uint64_t edges_ = 0;
    std::uint64_t appended_ = 0;
    std::uint64_t visited_ = 0;
};

}  // namespace suffixsvc
