package sysproc

import (
	"strings"
	"testing"
)

// FuzzProcFiles: neither the name of a program nor a line that it writes into the kernel's log can
// forge the parsed values of a process.
func FuzzProcFiles(f *testing.F) {
	const tail = " S 1 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4711 1 2 18446744073709551615 1 1 1 1 1 0 0 0 0 0 0 0 17 0 0 0 0 0 0 0 0 0 0 0 0 0 256"
	f.Add("7 (sh)"+tail, "6,1,5000000,-;Memory cgroup out of memory: Killed process 7 (sh) total-vm:1kB\n SUBSYSTEM=x\n", "sh")
	f.Add("7 (a) Z 1 (b) ) R 2 3", "6,1,x;out of memory: Killed process -7", ") Z 0")
	f.Add("", ";", "")
	f.Fuzz(func(t *testing.T, stat, record, name string) {
		if p, err := parseStat([]byte(stat)); err == nil && p.State == 0 {
			t.Errorf("%q has no state", stat)
		}
		kill, ok := parseOOMKill(record)
		_, text, _ := strings.Cut(record, ";")
		if ok && !strings.Contains(text, "Killed process ") && !strings.Contains(text, "task_memcg=") {
			t.Errorf("%q is read as the kill %+v", record, kill)
		}
		p, err := parseStat([]byte("7 (" + name + ")" + tail))
		if err != nil || p.PPid != 1 || p.Start != 4711 || p.State != 'S' || p.Status != 256 {
			t.Errorf("a program called %q is %+v, %v", name, p, err)
		}
	})
}
