//go:build integration && e2e

package trees

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/image/imagetest"
)

// treeOf observes a tree.
func treeOf(t *testing.T, root string) map[string]imagetest.Node {
	t.Helper()
	tree, err := imagetest.Observe(root)
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

// differences lists, sorted, the fields in which two trees differ. A time of the other tree that is after start is the clock's:
// where described does not have the directory, no layer has a time for it. A layer may also delete and not describe it again.
func differences(berth, other map[string]imagetest.Node, start time.Time, described map[string]bool) []difference {
	var all []difference
	names := map[string]bool{}
	for name := range berth {
		names[name] = true
	}
	for name := range other {
		names[name] = true
	}
	late := start.UTC().Format("2006-01-02T15:04:05")
	for name := range names {
		ours, theirs := berth[name], other[name]
		if ours == nil || theirs == nil {
			all = append(all, difference{name, "presence", fmt.Sprint(ours != nil), fmt.Sprint(theirs != nil)})
			continue
		}
		for _, field := range imagetest.NodeFields() {
			if ours[field] == theirs[field] {
				continue
			}
			clock := field == "mtime" && theirs[field] >= late && theirs[field][:4] == late[:4]
			if clock && (!described[name] || ours[field] >= late) {
				continue
			}
			all = append(all, difference{name, field, ours[field], theirs[field]})
		}
	}
	slices.SortFunc(all, func(a, b difference) int { return strings.Compare(a.name+"\x00"+a.field, b.name+"\x00"+b.field) })
	return all
}

// difference is one field of one name.
type difference struct{ name, field, berth, other string }

func (d difference) String() string {
	return fmt.Sprintf("%.80q: %s is %.200q in berth, %.200q in the other tree", d.name, d.field, d.berth, d.other)
}

// allocated is what a file takes on disk, in bytes.
func allocated(t *testing.T, path string) int64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * 512
}
