package sysproc

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestUnchangedMappings(t *testing.T) {
	const smaps = `00400000-00500000 r-xp 00000000 08:01 1577      /usr/local/bin/berth
Size:               1024 kB
Rss:                 900 kB
Anonymous:             0 kB
VmFlags: rd ex mr mw me
00500000-00600000 r--p 00100000 08:01 1577      /usr/local/bin/berth (deleted)
Anonymous:             4 kB
00600000-00700000 rw-p 00200000 08:01 1577      /usr/local/bin/berth
Anonymous:             0 kB
00700000-00800000 r--p 00300000 08:01 1577      /usr/local/bin/berth
Anonymous:             0 kB
00800000-00900000 r--s 00300000 08:01 1577      /usr/local/bin/berth
Anonymous:             0 kB
7f0000000000-7f0000100000 r--p 00000000 08:01 9 /etc/other
Anonymous:             0 kB
7fff00000000-7fff00021000 rw-p 00000000 00:00 0 [stack]
Anonymous:            12 kB
`
	got, err := unchangedMappings(strings.NewReader(smaps), 1577)
	if err != nil {
		t.Fatal(err)
	}
	want := []mapping{{0x400000, 0x500000}, {0x700000, 0x800000}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(mapping{})); diff != "" {
		t.Error(diff)
	}
	if _, err := unchangedMappings(strings.NewReader("0zz-1 r-xp 0 08:01 1577 x\n"), 1577); err == nil {
		t.Error("no error of a line that is no mapping")
	}
}

// After ReleaseMemory most pages of the program are not mapped, and the process goes on.
func TestReleaseMemory(t *testing.T) {
	mapped := func() (kb int) {
		t.Helper()
		data, err := os.ReadFile("/proc/self/smaps")
		if err != nil {
			t.Fatal(err)
		}
		var program unix.Stat_t
		if err := unix.Stat("/proc/self/exe", &program); err != nil {
			t.Fatal(err)
		}
		ours := false
		for line := range strings.Lines(string(data)) {
			words := strings.Fields(line)
			if len(words) >= 5 && strings.Contains(words[0], "-") {
				ours = words[4] == strconv.FormatUint(program.Ino, 10) && words[1][1] == '-'
			}
			if ours && words[0] == "Rss:" {
				n, err := strconv.Atoi(words[1])
				if err != nil {
					t.Fatal(err)
				}
				kb += n
			}
		}
		return kb
	}
	before := mapped()
	if err := ReleaseMemory(); err != nil {
		t.Fatal(err)
	}
	after := mapped()
	if before == 0 || after >= before {
		t.Errorf("%d kB of the program were mapped before, %d after", before, after)
	}
	t.Logf("%d kB of the program were mapped before, %d after", before, after)
}
