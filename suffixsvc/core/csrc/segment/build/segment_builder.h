// Builds segments: from texts in memory, or from other segments. Both give the same bytes for the
// same occurrences and ages. A text whose newest output was forgotten keeps its age in a merge.
//
// A text is what the index calls one: tokens that are context only (the end of a prompt), then the tokens
// that a model wrote, which count. Equal texts (context included) are stored once, with all their outputs,
// and have the age of the newest of them.
//
// Nothing appears under the final name before all of it is on the disk (segment/build/segment_writer.h); an
// existing file of that name is replaced. Threads: any; the job may be cancelled and observed from other
// threads. Not to be called while a lock is held that drafting needs.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/sync/job.h"
#include "segment/build/segment_writer.h"
#include "segment/format/segment_texts.h"

namespace suffixsvc {

class Segment;

// Concatenated texts. All spans but `tokens` have one element per text.
struct SegmentInput {
    std::span<const Token> tokens;
    std::span<const std::uint64_t> lengths;   // length of each text, context included
    std::span<const std::uint32_t> contexts;  // leading tokens that are context only; less than the length
    std::span<const std::uint64_t> lsns;      // the output that it belongs to
};

// hub_min: contexts seen at least this often get precomputed counts, 2 or more; 0: chosen to keep hubs small
// (segment/format/segment_hubs.h). Memory: 8 to 12 bytes per token for all but inputs of very few distinct
// ids, at most 40. Fault kinds: invalid, full, io, cancelled.
void build_segment(const FilePath& path, const SegmentInput& input, std::uint32_t hub_min, SegmentJob& job);

// Streams its sources: memory of a few dozen bytes per text and four bytes per distinct id and source; the
// sources' pages are read once in order, their texts at random. Forgotten outputs are left out; outputs that
// are forgotten while it runs may or may not be (the caller must forget them again in the result). Fault
// kinds: as above, and corrupt if a source is.
void merge_segments(const FilePath& path, std::span<const Segment* const> sources, std::uint32_t hub_min,
                    SegmentJob& job);

// The counts of a segment of these texts, but for hubs.
SegmentHeader header_of(const TextTable& texts, std::uint32_t alphabet);
// Throws FileFault (invalid) if hub_min is 1: a context of one entry has no followers to count.
void require_hub_min(std::uint32_t hub_min);

// The last steps of both: hubs from the sorted columns already written, tables, checksums, the final name.
void finish_segment(SegmentWriter& writer, SegmentHeader header, const std::vector<Token>& ids,
                    const std::vector<std::uint32_t>& buckets, const TextTable& texts, std::uint32_t hub_min,
                    SegmentJob& job);

}  // namespace suffixsvc
