// Makes segments: from texts in memory, or from other segments. Both give the same bytes for the same
// occurrences.
//
// A text is what the index calls one: tokens that are context only (the end of a prompt), then the tokens a
// model wrote, which count. Equal texts (context included) are kept once, with all their outputs, and are as
// old as the newest of them.
//
// Nothing appears under the final name before all of it is on the disk (segment_writer.h); an existing file
// of that name is replaced. Threads: any; the job may be cancelled and watched from others. Not to be called
// with a lock held that drafting needs.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "segment_format.h"
#include "segment_texts.h"

namespace suffixsvc {

class Segment;

// Texts, one after the other. All spans but `tokens` have an entry a text.
struct SegmentInput {
    std::span<const Token> tokens;
    std::span<const std::uint64_t> lengths;   // of each text, context included
    std::span<const std::uint32_t> contexts;  // its first tokens that are context only; less than its length
    std::span<const std::uint64_t> lsns;      // the output it belongs to
};

struct SegmentOptions {
    std::uint32_t hub_min = 0;  // 0: what keeps hubs small (segment_hubs.h)
};

// Memory: 8 to 12 bytes a token for all but inputs of very few different ids, at most 40. Fault kinds:
// invalid, full, io, cancelled.
FileFault build_segment(const std::string& path, const SegmentInput& input, const SegmentOptions& options,
                        SegmentJob& job);

// Streams: memory a few dozen bytes a text and four bytes a different id and source; the sources' pages are
// read once in order, their texts at random. Forgotten outputs are left out; those forgotten while it runs
// may or may not be (the caller forgets them again in the result). Fault kinds: as above, and corrupt where a
// source is.
FileFault merge_segments(const std::string& path, std::span<const Segment* const> sources,
                         const SegmentOptions& options, SegmentJob& job);

// The last steps of both: hubs from the sorted columns already written, tables, checksums, the final name.
// `header.counts` is complete but for texts and hubs. `ids` are the alphabet.
bool finish_segment(SegmentWriter& writer, SegmentHeader header, const std::vector<Token>& ids,
                    const std::vector<std::uint32_t>& buckets, const TextTable& texts,
                    const SegmentOptions& options, SegmentJob& job);

}  // namespace suffixsvc
