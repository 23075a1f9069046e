// The last steps of building and merging, and the tables that both write.
#include "segment/segment_builder.h"
#include "segment/segment_hubs.h"

namespace suffixsvc {

void TextTable::describe(SegmentHeader& header) const {
    header.counts.texts = static_cast<std::uint32_t>(size());
    header.counts.occurrences = static_cast<std::uint32_t>(occ_lsn.size());
    header.first_lsn = occ_lsn.empty() ? 0 : occ_lsn.front();
    header.last_lsn = occ_lsn.empty() ? 0 : occ_lsn.back();
}

bool TextTable::write(SegmentWriter& writer, const SegmentLayout& layout) const {
    return write_column(writer, layout[Column::text_start].offset, start) &&
           write_column(writer, layout[Column::text_context].offset, context) &&
           write_column(writer, layout[Column::text_age].offset, age) &&
           write_column(writer, layout[Column::occ_lsn].offset, occ_lsn) &&
           write_column(writer, layout[Column::occ_text].offset, occ_text);
}

bool finish_segment(SegmentWriter& writer, SegmentHeader header, const std::vector<Token>& ids,
                    const std::vector<std::uint32_t>& buckets, const TextTable& texts,
                    const SegmentOptions& options, SegmentJob& job) {
    texts.describe(header);
    SegmentCounts& counts = header.counts;
    // Hubs are last in the file: the number of hubs does not move any other column.
    SegmentLayout layout = layout_of(counts);
    if (!write_column(writer, layout[Column::alphabet].offset, ids) ||
        !write_column(writer, layout[Column::buckets].offset, buckets) || !texts.write(writer, layout))
        return false;
    const std::uint8_t* file = writer.map(layout.file_bytes);
    if (!file) return false;
    const TextMap map(texts.start, texts.start.back());
    std::vector<std::uint32_t> weights;
    if (counts.occurrences != counts.texts) weights = texts.weights();
    const SortedColumns columns{file + layout[Column::order].offset,
                                file + layout[Column::next].offset,
                                file + layout[Column::lcp].offset,
                                counts.code_bytes,
                                counts.entries,
                                counts.alphabet,
                                &map,
                                weights};
    HubList hubs;
    if (!find_hubs(columns, options.hub_min, hubs, job)) return writer.cancel();
    counts.hubs = static_cast<std::uint32_t>(hubs.hubs.size());
    counts.hub_min = hubs.hub_min;
    layout = layout_of(counts);
    if (!write_column(writer, layout[Column::hub_start].offset, hubs.start) ||
        !write_column(writer, layout[Column::hub_index].offset, hubs.index) ||
        !write_column(writer, layout[Column::hubs].offset, hubs.hubs))
        return false;
    if (job.cancelled.load(std::memory_order_relaxed)) return writer.cancel();
    if (!writer.finish(header)) return false;
    job.done.store(1.0, std::memory_order_relaxed);
    return true;
}

}  // namespace suffixsvc
