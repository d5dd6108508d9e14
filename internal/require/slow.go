package require

import (
	"os"
	"strconv"
	"time"
)

// Patience is how long a test waits on this machine for what takes less than d on
// an ordinary one: BERTH_TEST_SLOW is how many times slower this machine is (an emulated
// one, for example).
func Patience(d time.Duration) time.Duration {
	factor, err := strconv.ParseFloat(os.Getenv("BERTH_TEST_SLOW"), 64)
	if err != nil || factor < 1 {
		return d
	}
	return time.Duration(float64(d) * factor)
}
