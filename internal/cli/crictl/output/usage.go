package output

import (
	"strconv"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/podusage"
)

// ClearScreen precedes a table that replaces the last one.
const ClearScreen = "\033[2J\033[H"

// CPUShare is the use between two samples, in percent of one processor.
func CPUShare(before, after *runtimeapi.CpuUsage) string {
	share := 0.0
	if cores := podusage.CPU(before, after); cores != podusage.Unknown {
		share = 100 * cores
	}
	return strconv.FormatFloat(share, 'f', 2, 64)
}
