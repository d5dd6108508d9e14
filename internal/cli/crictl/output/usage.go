package output

import (
	"strconv"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ClearScreen precedes a table that replaces the last one.
const ClearScreen = "\033[2J\033[H"

// CPUShare is the use between two samples, in percent of one processor.
func CPUShare(before, after *runtimeapi.CpuUsage) string {
	elapsed := after.GetTimestamp() - before.GetTimestamp()
	share := 0.0
	if elapsed > 0 {
		used := int64(after.GetUsageCoreNanoSeconds().GetValue()) - int64(before.GetUsageCoreNanoSeconds().GetValue())
		share = 100 * float64(used) / float64(elapsed)
	}
	return strconv.FormatFloat(share, 'f', 2, 64)
}
