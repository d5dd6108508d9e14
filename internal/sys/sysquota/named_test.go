package sysquota

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func TestNamed(t *testing.T) {
	named := map[uint32]bool{}
	addNamed(named, "# of the administrator\n10:/var/log\n 11:/srv:x\nx:/no\n4294967296:/large\n", 0)
	addNamed(named, "logs:12\nvolume1048577:1048577\nno\n", 1)
	if got := slices.Sorted(maps.Keys(named)); !slices.Equal(got, []uint32{10, 11, 12, 1048577}) {
		t.Errorf("named: %d", got)
	}
	if _, err := Named(); err != nil {
		t.Errorf("of this host: %v", err)
	}
}

// FuzzNamed: every project that is found stands in the text.
func FuzzNamed(f *testing.F) {
	f.Add("10:/var/log\n#x\n", 0)
	f.Add("logs:12\n:\n", 1)
	f.Fuzz(func(t *testing.T, text string, field int) {
		named := map[uint32]bool{}
		addNamed(named, text, field&1)
		for id := range named {
			if !strings.Contains(text, strconv.FormatUint(uint64(id), 10)) {
				t.Errorf("%q does not name %d", text, id)
			}
		}
	})
}
