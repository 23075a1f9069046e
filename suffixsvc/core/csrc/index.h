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
// only where there is no time. Removing a token takes it from the count in the same way and by the same
// budget. settle() passes on all that is left; after it counts are exact. Contexts longer than
// `max_context` are not counted.
//
// Memory: nodes.h has the nodes, edges.h their edges, slab.h the memory that they lie in. Names of nodes do
// not change while the node lives.
//
// Threads: writers take turns by Index::mutex, which callers take. Readers take nothing; they hold a Reading
// (grace.h) while they look, so that what they can find is not used for something else. They may see the tree
// in the middle of a split, a merge or a removal. What they find then was true before or is true after:
//
//   growing    a new node has no link until its edges are in place: until then no reader follows them
//   splitting  the target hangs on the new node before any edge leads to the new one; a cursor that
//              still came to the target is led up to the new node by its length (canonical)
//   merging    the buried node keeps edges, counts and link; edges lead to the heir one by one
//   removing   edges go from the longest context to the shortest, so that none knows what a shorter one does
//              not; the epoch counts up before anything is used again, and a cursor of an earlier epoch is
//              found again
//
// Why not a lock. Measured on two shared cores (tests/bench_reads.cpp, four runs): with one shared lock a
// writer gets 0 to 12,000 tokens a second in beside four readers, where it writes 190,000 or more into an
// index of its own; and as sessions write between drafts, the p99 of four of them went up to 2.5 and 6.8 ms
// in two runs. With a sharded lock that lets writers pass it is readers who wait for a holder that is not
// running: p99 of 4 to 16 ms from two sessions on (two runs). Without locks writers lose nothing and the p99
// stayed below 0.1 ms.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "drafted.h"
#include "holds.h"
#include "nodes.h"
#include "segment_list.h"

namespace suffixsvc {

// A place in the tree: the node that holds the last `len` tokens of some context.
struct Cursor {
    NodeId node = kRoot;
    std::uint32_t len = 0;
};

// A text that can grow. Tokens of weight 0 are context only: they are matched but not counted.
//
// Where a text ends after a long repetition, one token may touch as many nodes as it has: once, but in one
// turn of the mutex. So a longer text than kMostText is kept as several, each of which begins with the last
// max_context tokens of the one before as its context (Index::pieces): all counts are the same.
inline constexpr std::size_t kMostText = std::size_t{1} << 15;
struct Piece {
    std::size_t first, last;  // tokens of the text
    std::size_t uncounted;    // of these, the first ones that are context only
    std::size_t repeated;     // and those that the piece before has, too
};

struct TextEnd {
    NodeId last = kRoot;      // the node whose string is the whole text
    Cursor context;           // its last max_context tokens
    std::uint64_t epoch = 0;  // Index::epoch() the context is valid for
};

// What live sessions hold in and beside the index that they write to; they keep it up to date.
struct LiveSessions {
    std::atomic<std::int64_t> bytes{0};   // memory of their own: texts, their own indexes, buffers
    std::atomic<std::int64_t> tokens{0};  // positions of the index that they wrote, contexts included
};

struct IndexStats {
    std::uint64_t nodes = 0;
    std::uint64_t edges = 0;
    std::uint64_t tokens = 0;          // positions of all live texts, context-only ones included, each once
    std::uint64_t bytes = 0;           // memory of nodes and edges, spare included
    std::uint64_t used = 0;            // the same without what is spare
    std::uint64_t appended = 0;        // tokens ever appended
    std::uint64_t visited = 0;         // nodes ever touched by appending
    std::uint64_t session_tokens = 0;  // positions of live sessions' texts
    std::uint64_t session_bytes = 0;   // see Index::session_bytes()
};

class Index {
  public:
    // `readers`: whether others look while one writes.
    explicit Index(std::uint32_t max_context = 64, bool readers = true);
    Index(const Index&) = delete;
    Index& operator=(const Index&) = delete;

    // Of writers. Held for some tokens, or nodes, at a time.
    using Mutex = HeldMutex<LockKind::index, FairMutex>;
    mutable Mutex mutex;
    // Sealed history of the same namespace. Not under the mutex: sessions take a new list at their next step.
    SegmentList segments;
    // Writers whose texts drafts were taken from; not under the mutex either.
    mutable Drafted drafted;
    LiveSessions live;
    // Memory of live sessions: their own, and of what is in use here their share by positions.
    std::uint64_t session_bytes() const { return own_and_share(live.bytes.load(), live.tokens.load()); }
    // The same of one of them.
    std::uint64_t own_and_share(std::int64_t bytes, std::int64_t tokens) const;

    // ---- growing; under the mutex ----------------------------------------------------------------
    // `text` must be a text of this index that nothing was removed from. O(1) nodes amortised.
    // `context_tail` are the text's last tokens (at most max_context are looked at), needed where a
    // removal made text.context stale.
    void append(TextEnd& text, Token token, bool counted, std::uint32_t writer,
                std::span<const Token> context_tail);
    // To be called after writes, without the mutex: has the system find memory for those to come.
    void populate() { nodes_.populate(); }
    // Many tokens at once, the first `uncounted` of them context only, of a text that stays one however long
    // it is. Nothing may have been removed since the text was begun.
    void append(TextEnd& text, std::span<const Token> tokens, std::size_t uncounted, std::uint32_t writer);
    // Begins the next piece of a text that grows; `context` are the tokens that it repeats.
    void begin_piece(TextEnd& text, std::span<const Token> context, std::uint32_t writer);
    // The texts that a text is kept as.
    std::vector<Piece> pieces(std::size_t length, std::size_t uncounted) const;
    // A whole text at once; the first `uncounted` tokens are context only.
    void add(std::span<const Token> text, std::size_t uncounted, std::uint32_t writer);
    // The same, but takes the mutex itself, for some tokens at a time: others who write wait no longer than
    // that.
    void add_in_turns(std::span<const Token> text, std::size_t uncounted, std::uint32_t writer);

    // ---- long jobs; they take the mutex themselves, in turns ----------------------------------------
    // Undoes add, or the appends of a text that grew to exactly this. False where no such text is there
    // (nothing is changed then). The text goes from its end: after each turn the index is that of a shorter
    // one, so what is left of it can still be drafted from until the last turn.
    bool remove(std::span<const Token> text, std::size_t uncounted);
    // Makes every count exact, of what is written meanwhile most.
    void settle();
    // Gives back what was removed while somebody looked.
    void collect();
    // All n-grams with their counts, flat: n tokens each. Exact after settle().
    void ngrams(std::uint32_t n, std::vector<Token>& tokens, std::vector<std::uint64_t>& counts) const;
    // Walks everything; returns the first broken invariant, or an empty string. What is written meanwhile is
    // checked node by node only: what it adds up to changes under the walk. One check at a time.
    std::string check() const;

    // ---- reading; while a Reading is held --------------------------------------------------------
    std::uint32_t max_context() const { return max_context_; }
    // Changes whenever cursors may have become stale; find() them again then. A cursor that is kept from one
    // Reading to another must be of the epoch that was looked up before it was found.
    std::uint64_t epoch() const { return epoch_.load(std::memory_order_acquire); }
    void prefetch(NodeId id) const { nodes_.prefetch(id); }
    void prefetch_followers(NodeId id) const { nodes_.prefetch_followers(id); }
    NodeView node(NodeId id) const { return nodes_.view(id); }
    // Parts of it, for less.
    NodeVotes votes(NodeId id) const { return nodes_.votes(id); }
    std::uint32_t len(NodeId id) const { return nodes_.len(id); }
    NodeId next(NodeId id, Token token) const {
        const NodeId to = nodes_.next(id, token);
        return to == kNoNode || nodes_.complete(to) ? to : kNoNode;
    }
    // In insertion order.
    Edges edges(NodeId id) const { return nodes_.edges(id); }
    // Moves a cursor by one token to the longest suffix that is known, at most max_context long.
    // Returns how many nodes were touched.
    std::uint32_t advance(Cursor& cursor, Token token) const;
    // The cursor of the longest known suffix of a context.
    Cursor find(std::span<const Token> context) const;
    // Occurrences of exactly these tokens (at most max_context of them); exact after settle().
    std::uint64_t count(std::span<const Token> tokens) const;

    // ---- looking at the whole; under the mutex ---------------------------------------------------
    bool settled() const { return unsettled_ == 0; }
    IndexStats stats() const;

  private:
    static constexpr std::size_t kTurn = 128;           // tokens, some 40 us
    static constexpr std::uint64_t kTurnVisits = 2048;  // nodes after which a turn of fewer tokens ends, too
    static constexpr std::uint32_t kEveryLink = 0xFFFFFFFFu;

    class Ahead;
    class Checking;
    struct ContinuationCount;
    std::size_t append_part(TextEnd& text, std::span<const Token> tokens, std::size_t first, std::size_t last,
                            std::size_t uncounted, std::uint32_t writer, std::uint64_t most_visits);
    struct Grown {
        NodeId id;
        bool made;  // a new plain node, its end included
    };

    NodeId link(NodeId id) const { return nodes_.link(id); }
    void bury(NodeId id);
    Grown extend(NodeId last, Token token, std::uint32_t writer);
    NodeId split(NodeId from, Token token, NodeId target);
    std::uint64_t redirect(NodeId p, Token token, NodeId from, NodeId to, std::uint32_t above);
    void mark_writer(NodeId id, std::uint32_t writer);
    void carry(NodeId id, std::int32_t amount, std::uint32_t hops);
    std::uint32_t hops();
    void pay(std::uint64_t visited_before);
    std::uint32_t canonical(Cursor& cursor) const;
    // A text that is being removed: it ends in this node by now.
    struct Removal {
        explicit Removal(Index& of) : index(of) {}
        Removal(const Removal&) = delete;
        Removal& operator=(const Removal&) = delete;
        ~Removal();

        Index& index;
        NodeId last = kRoot;
        std::vector<NodeId> path;  // the nodes of all its beginnings
    };
    bool walk(std::span<const Token> text, std::vector<NodeId>& path) const;
    bool claim(std::span<const Token> text, Removal& removal);
    std::uint32_t ends(NodeId id) const;
    void note_continuation(NodeId from, NodeId to, int by) noexcept;
    std::uint64_t removed_from(NodeId id) const;
    bool ends_here(ContinuationCount& count, std::unique_lock<Mutex>& turn);
    std::size_t remove_part(std::span<const Token> text, std::size_t uncounted, std::span<const NodeId> path,
                            std::size_t first, std::size_t last);
    void publish();
    void fetch(std::span<const NodeId> path, std::span<const Token> text, std::size_t first,
               std::size_t last) const;
    void drop_last(NodeId node, NodeId before, Token token);
    void merge_into_child(NodeId id, NodeId from, Token token);
    // The node, or what its children add up to, is not what it was: for a check that is under way.
    void changed(NodeId id) {
        if (checking_ != nullptr) [[unlikely]]
            notify_check(id);
    }
    void notify_check(NodeId id);

    std::uint32_t max_context_;
    Nodes nodes_;
    std::atomic<std::uint64_t> epoch_{1};
    std::uint64_t ticks_ = 0;
    std::int64_t credit_ = 0;     // node visits left over from cheap tokens
    std::int64_t unsettled_ = 0;  // nodes with unsent != 0
    std::uint64_t tokens_ = 0;
    std::uint64_t repeated_ = 0;  // of these, what pieces repeat
    std::uint64_t appended_ = 0;
    std::uint64_t visited_ = 0;
    std::vector<const Removal*> removing_;
    std::vector<ContinuationCount*> counting_;
    mutable Checking* checking_ = nullptr;
    mutable std::mutex checks_;  // held by the one who checks
    // For who reads without the mutex.
    std::atomic<std::uint64_t> published_used_{0}, published_tokens_{0};
};

}  // namespace suffixsvc
