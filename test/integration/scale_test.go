//go:build integration

package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/berthrun/berth/test/harness"
)

// bytesRead is what berth's processes have read from files: records, /proc, mount tables, cgroups.
func bytesRead(t *testing.T, b *harness.Berth) (total int) {
	t.Helper()
	for _, pid := range []int{b.DaemonPid(), b.SupervisorPid(), b.KeeperPid()} {
		data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "io"))
		if err != nil {
			t.Fatal(err)
		}
		total += readOf(t, string(data))
	}
	return total
}

// readOf returns the bytes read, of a /proc/PID/io.
func readOf(t *testing.T, text string) int {
	t.Helper()
	_, after, found := strings.Cut(text, "rchar: ")
	line, _, _ := strings.Cut(after, "\n")
	n, err := strconv.Atoi(line)
	if err != nil || !found {
		t.Fatalf("%q: %v", text, err)
	}
	return n
}

// The start of a pod reads as much on a full node as on an empty one. (What a container's init reads
// counts only once it has ended.)
func TestAStartReadsTheSameHoweverManyPodsRun(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	b.RemovePod(b.RunPod("first", "sleep 1000").Sandbox) // fills caches
	// The least of several: berth looks at all pods from time to time.
	cost := func(when string) int {
		var read []int
		for i := range 5 {
			before := bytesRead(t, b)
			pod := b.RunPod(fmt.Sprint(when, i), "sleep 1000")
			read = append(read, bytesRead(t, b)-before)
			b.RemovePod(pod.Sandbox)
		}
		t.Logf("%s: %v bytes", when, read)
		return slices.Min(read)
	}
	few := cost("few")
	for i := range 40 {
		b.RunPod(fmt.Sprint("stays", i), "sleep 1000")
	}
	many := cost("many")
	if many > few+few/10 {
		t.Errorf("the start of a pod reads %d bytes beside 40 others, and %d beside none", many, few)
	}
}

// A restart of the daemon reads the records of a pod and what the kernel lists of it, and nothing else: it
// does not decode the spec of its container.
func TestARestartReadsLittleOfEachPod(t *testing.T) {
	const (
		pods = 20
		// The records have 6 KB, the lines of the mount table some more. A spec alone has over 20 KB.
		most = 16 << 10
	)
	b := harness.Start(t, harness.Options{})
	b.RunPod("first", "sleep 1000")
	cost := func() int {
		b.StopDaemon()
		b.StartDaemon()
		data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(b.DaemonPid()), "io"))
		if err != nil {
			t.Fatal(err)
		}
		return readOf(t, string(data))
	}
	few := cost()
	for i := range pods {
		b.RunPod(fmt.Sprint("more", i), "sleep 1000")
	}
	many := cost()
	t.Logf("%d bytes with one pod, %d with %d", few, many, pods+1)
	if each := (many - few) / pods; each > most {
		t.Errorf("a restart reads %d bytes of each pod, at most %d are expected", each, most)
	}
}
