// The hot index: a generalised suffix tree of the reversed texts, extended online, one token at a time.
//
// A node represents a set of contexts that always end at the same positions; its string is the longest of
// them. Its parent (`link`) is the next shorter context that also occurs elsewhere, so the path to the root
// visits each distinct match length once. Its edges (in the literature: Weiner links, or the transitions of
// the directed acyclic word graph) lead to the context extended by one next token; the count of that node is
// the number of times that token followed.
//
//   texts  "a b c" and "x b c"                 after "x b c" was extended by "d"
//
//   root ── b ── ab                            edges:  c  --d-->  cd
//     │      └── xb                                    bc --d-->  cd      one node for d, cd, bcd
//     └──── bc ── abc        (c and bc end at          xbc -d-->  xbcd
//             └── xbc         the same positions)
//
// Why reversed: appending to a text adds one leaf that is complete at once (its context is already written),
// so any number of sessions can write into one tree while all of them draft from it. A suffix tree of the
// forward texts would have open leaves that all writers extend.
//
// Appending a token is online construction of the graph (Blumer et al. 1985): walk up from the text's last
// node until a context has an edge for the token, and split that edge's target if it also represents longer
// strings. Removing the last token of a text undoes exactly that: the node is removed if no text ends in it,
// and a node that is left with one child and no text ending in it is merged into the child. `child_xor`
// identifies that child without a list of children. A text is removed from its last token to its first.
//
//   remove "x b c d":   xbcd is removed;  its parent keeps one child: merge
//
//   cd ── bcd' ...      P ─┬─ removed         P has one child left and no text ends in it:
//     └── xbcd             └─ ch     =>       P's strings join ch, edges to P are redirected to ch
//
// Counts. An occurrence counts in every node on the path to the root: exact counting would touch all of them
// for every token. Instead it is added at the context of `max_context` tokens and propagated over a bounded
// number of links; each node keeps the part that it has not propagated yet (`pending`), and later arrivals
// carry it further. A budget of node visits per token limits the number of links (most inputs leave room for
// the whole path); it is hardly ever less than two, and now and then, at random, the whole path. So the mean
// number of visited nodes is bounded for every input, whatever the depth, and counts of short contexts lag
// only where the budget is exhausted. Removing a token subtracts it in the same way and from the same budget.
// propagate_counts() propagates everything that is pending; after it counts are exact. Contexts longer than
// `max_context` are not counted.
//
// Memory: index/nodes.h has the nodes, index/edges.h their edges, base/memory/slab.h the allocator. The id of
// a node does not change while the node lives.
//
// Threads: writers are serialised by Index::mutex, which callers lock. Readers take no lock; they hold an
// EpochGuard (base/memory/epoch_guard.h) while they read, so that nothing they can reach is reused. They may
// see the tree in the middle of a split, a merge or a removal. What they find then was true before or is true
// after the operation:
//
//   append     a new node has no link until its edges are in place: until then no reader follows them
//   split      the target is linked to the new node before any edge leads to the new one; a cursor that
//              still reached the target is moved up to the new node by its length (canonical)
//   merge      the retired node keeps edges, counts and link; edges are redirected to the successor one
//              after the other
//   remove     edges are erased from the longest context to the shortest, so that no context has an edge
//              that a shorter one lacks; the epoch is advanced before anything is reused, and a cursor of
//              an earlier epoch is looked up again
//
// Why no lock. Measured on two shared cores (four runs): with one shared lock a writer
// inserts 0 to 12,000 tokens a second beside four readers, against 190,000 or more into a separate index; and
// as sessions write between drafts, the p99 of four of them rose to 2.5 and 6.8 ms in two runs. With a
// sharded lock that prefers writers, readers wait for a holder that is not scheduled: p99 of 4 to 16 ms from
// two sessions on (two runs). Without locks writers lose nothing and the p99 stayed below 0.1 ms.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/cache/recently_used.h"
#include "base/sync/instrumented_mutex.h"
#include "index/nodes.h"
#include "index/segment_list.h"

namespace suffixsvc {

// A position in the tree: the node that represents the last `len` tokens of some context.
struct Cursor {
    NodeId node = kRoot;
    std::uint32_t len = 0;
};

// A text that can be extended. Uncounted tokens are context only: they are matched but not counted.
//
// Where a text ends after a long repetition, one token may touch as many nodes as the text has tokens: only
// once, but within one hold of the mutex. So a text longer than kMaxText is stored as several pieces, each of
// which begins with the last max_context tokens of the piece before as its context (Index::pieces): all
// counts are the same.
inline constexpr std::size_t kMaxText = std::size_t{1} << 15;
struct Piece {
    std::size_t first, last;  // token range of the text
    std::size_t uncounted;    // number of leading tokens that are context only
    std::size_t repeated;     // number of leading tokens that the piece before has, too
};

struct TextEnd {
    NodeId last = kRoot;      // the node whose string is the whole text
    Cursor context;           // its last max_context tokens
    std::uint64_t epoch = 0;  // Index::epoch() the context is valid for
};

// Resources of live sessions in and beside the index that they write to; the sessions keep it up to date.
struct LiveSessions {
    std::atomic<std::int64_t> bytes{0};   // memory owned by the sessions: texts, local indexes, buffers
    std::atomic<std::int64_t> tokens{0};  // positions of the index that they wrote, contexts included
};

struct NgramCounts {
    std::vector<Token> tokens;  // flat: n tokens each
    std::vector<std::uint64_t> counts;
};

struct IndexStats {
    std::uint64_t nodes = 0;
    std::uint64_t edges = 0;
    std::uint64_t tokens = 0;          // positions of all live texts, context-only ones included, each once
    std::uint64_t bytes = 0;           // bytes reserved for nodes and edges, free space included
    std::uint64_t used = 0;            // bytes of live nodes and edges
    std::uint64_t appended = 0;        // tokens ever appended
    std::uint64_t visited = 0;         // nodes ever touched by appending
    std::uint64_t session_tokens = 0;  // positions of live sessions' texts
    std::uint64_t session_bytes = 0;   // see Index::session_bytes()
};

class Index {
  public:
    // `readers`: whether other threads read while one thread writes.
    explicit Index(std::uint32_t max_context = 64, bool readers = true);
    Index(const Index&) = delete;
    Index& operator=(const Index&) = delete;

    // Serialises writers. Held for a bounded number of tokens, or nodes, at a time.
    using Mutex = InstrumentedMutex<LockKind::index, FairMutex>;
    mutable Mutex mutex;
    // Sealed history of the same namespace. Not guarded by the mutex: sessions pick up a new list at their
    // next step.
    SegmentList segments;
    // False: sessions draft nothing from this index or its segments, from their next step on. Any thread.
    std::atomic<bool> drafting{true};
    // Writer numbers of texts that drafts were taken from; not guarded by the mutex either.
    mutable RecentlyUsed recently_used;
    LiveSessions live;
    // Bytes of live sessions: memory that they own, and their share, by positions, of the memory in use here.
    std::uint64_t session_bytes() const { return attributed_bytes(live.bytes.load(), live.tokens.load()); }
    // The same for one session that owns `bytes` and wrote `tokens` positions.
    std::uint64_t attributed_bytes(std::int64_t bytes, std::int64_t tokens) const;

    // ---- appending; requires the mutex ------------------------------------------------------------
    // `text` must be a text of this index that nothing was removed from. O(1) nodes amortised. `context_tail`
    // are its last tokens (at most max_context are read), needed if a removal has invalidated text.context.
    // `writer`: number of the session or output that a text belongs to, not a thread.
    void append(TextEnd& text, Token token, bool counted, std::uint32_t writer,
                std::span<const Token> context_tail);
    // To be called after writes, without the mutex: touches the memory for the next ones.
    void populate() { nodes_.populate(); }
    // Appends many tokens, the first `uncounted` of them context only, to a text that is not divided into
    // pieces, however long it is. Nothing may have been removed since the text was begun.
    void append(TextEnd& text, std::span<const Token> tokens, std::size_t uncounted, std::uint32_t writer);
    // Begins the next piece of a growing text; `context` are the tokens that it repeats.
    void begin_piece(TextEnd& text, std::span<const Token> context, std::uint32_t writer);
    // The pieces that a text of this length is stored as.
    std::vector<Piece> pieces(std::size_t length, std::size_t uncounted) const;

    // ---- long jobs; they lock the mutex themselves, in batches, so that writers wait for one at most ----
    // Adds a whole text; the first `uncounted` tokens are context only.
    void add(std::span<const Token> text, std::size_t uncounted, std::uint32_t writer);
    // Undoes add, or the appends of a text that consists of exactly these tokens. Returns false, without a
    // change, if there is no such text. The text is removed from its end: after each batch the index is that
    // of a shorter text, so the rest can still be drafted from until the last batch.
    bool remove(std::span<const Token> text, std::size_t uncounted);
    // Propagates all pending counts: counts are exact afterwards, except for what is written meanwhile.
    void propagate_counts();
    // Frees removed nodes that readers may have held until now, and replaced segment lists.
    void collect();
    // All n-grams with their counts. Exact after propagate_counts().
    NgramCounts ngrams(std::uint32_t n) const;
    // Verifies the whole index; returns the first violated invariant, or an empty string. Nodes that are
    // written meanwhile are checked individually only, since their sums change during the walk. One check at
    // a time.
    std::string check() const;

    // ---- reading; requires an EpochGuard -----------------------------------------------------------
    std::uint32_t max_context() const { return max_context_; }
    // Changes whenever cursors may have become invalid; they must then be looked up again with find(). A
    // cursor that is kept from one EpochGuard to the next is valid for the epoch that was read before it
    // was found.
    std::uint64_t epoch() const { return epoch_.load(std::memory_order_acquire); }
    void prefetch(NodeId id) const { nodes_.prefetch(id); }
    void prefetch_followers(NodeId id) const { nodes_.prefetch_followers(id); }
    NodeView node(NodeId id) const { return nodes_.view(id); }
    // Parts of node(), at a lower cost.
    NodeVotes votes(NodeId id) const { return nodes_.votes(id); }
    std::uint32_t len(NodeId id) const { return nodes_.len(id); }
    NodeId next(NodeId id, Token token) const {
        const NodeId to = nodes_.next(id, token);
        return to == kNoNode || nodes_.complete(to) ? to : kNoNode;
    }
    // In insertion order.
    Edges edges(NodeId id) const { return nodes_.edges(id); }
    // Moves a cursor by one token to the longest known suffix, at most max_context long. Returns the number
    // of nodes touched.
    std::uint32_t advance(Cursor& cursor, Token token) const;
    // The cursor of the longest known suffix of a context.
    Cursor find(std::span<const Token> context) const;
    // Occurrences of exactly these tokens (at most max_context of them); exact after propagate_counts().
    std::uint64_t count(std::span<const Token> tokens) const;

    // ---- statistics; requires the mutex ------------------------------------------------------------
    IndexStats stats() const;

  private:
    static constexpr std::size_t kBatchTokens = 128;  // tokens of a batch, about 40 us
    // node visits after which a batch of fewer tokens ends, too
    static constexpr std::uint64_t kBatchVisits = 2048;
    static constexpr std::uint32_t kAllLinks = 0xFFFFFFFFu;

    class Prefetcher;
    class Checker;
    struct ContinuationCount;
    std::size_t append_part(TextEnd& text, std::span<const Token> tokens, std::size_t first, std::size_t last,
                            std::size_t uncounted, std::uint32_t writer, std::uint64_t max_visits);
    struct Extension {
        NodeId id;
        bool made;  // a new plain node was made, its text end counted
    };

    NodeId link(NodeId id) const { return nodes_.link(id); }
    void retire(NodeId id);
    Extension extend(NodeId last, Token token, std::uint32_t writer);
    NodeId split(NodeId from, Token token, NodeId target);
    std::uint64_t redirect(NodeId p, Token token, NodeId from, NodeId to, std::uint32_t above);
    void mark_writer(NodeId id, std::uint32_t writer);
    void propagate(NodeId id, std::int32_t amount, std::uint32_t hops);
    std::uint32_t random_hop_limit();
    void charge_visits(std::uint64_t visited_before);
    std::uint32_t canonical(Cursor& cursor) const;
    // A text that is being removed, shortened so far to the string of node `last`.
    struct Removal {
        explicit Removal(Index& of) : index(of) {}
        Removal(const Removal&) = delete;
        Removal& operator=(const Removal&) = delete;
        ~Removal();

        Index& index;
        NodeId last = kRoot;
        std::vector<NodeId> path;  // the nodes of all its prefixes
    };
    bool walk(std::span<const Token> text, std::vector<NodeId>& path) const;
    bool begin_removal(std::span<const Token> text, Removal& removal);
    std::uint32_t ends(NodeId id) const;
    void record_continuation(NodeId from, NodeId to, int by) noexcept;
    std::uint64_t removals_ending_in(NodeId id) const;
    bool text_ends_here(ContinuationCount& count, std::unique_lock<Mutex>& lock);
    std::size_t remove_part(std::span<const Token> text, std::size_t uncounted, std::span<const NodeId> path,
                            std::size_t first, std::size_t last);
    void prefetch_path(std::span<const NodeId> path, std::span<const Token> text, std::size_t first,
                       std::size_t last) const;
    void drop_last(NodeId node, NodeId before, Token token);
    void merge_into_child(NodeId id, NodeId from, Token token);
    // Reports to a running check that the node, or the sum over its children, has changed.
    void changed(NodeId id) {
        if (checker_ != nullptr) [[unlikely]]
            notify_check(id);
    }
    void notify_check(NodeId id);

    std::uint32_t max_context_;
    Nodes nodes_;
    std::atomic<std::uint64_t> epoch_{1};
    std::uint64_t draws_ = 0;
    std::int64_t visit_credit_ = 0;  // node visits saved by cheap tokens
    std::int64_t num_pending_ = 0;   // nodes with pending != 0
    std::uint64_t tokens_ = 0;
    std::uint64_t repeated_ = 0;  // those of tokens_ that pieces repeat
    std::uint64_t appended_ = 0;
    std::uint64_t visited_ = 0;
    std::vector<const Removal*> removing_;
    std::vector<ContinuationCount*> counting_;
    mutable Checker* checker_ = nullptr;
    mutable std::mutex check_mutex_;  // serialises checks
    // Copies for threads that do not hold the mutex.
    std::atomic<std::uint64_t> published_used_{0}, published_tokens_{0};
};

}  // namespace suffixsvc
