package sysproc

import (
	"testing"
	"time"
)

func TestParseOOMKill(t *testing.T) {
	for _, c := range []struct {
		record string
		pid    int
		at     time.Duration
		ok     bool
	}{
		{"3,1234,136377939,-;Memory cgroup out of memory: Killed process 447 (tail) total-vm:18288kB, anon-rss:16000kB, UID:0 oom_score_adj:1000\n", 447, 136377939 * time.Microsecond, true},
		{"3,7,5,-,caller=T9;Out of memory: Killed process 12 (a b) total-vm:1kB\n SUBSYSTEM=x\n", 12, 5 * time.Microsecond, true},
		{"6,8,5,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),task=tail,pid=447,uid=0\n", 0, 0, false},
		{"4,8,5,-;say: Killed process 447 (tail)\n", 0, 0, false},
		{"4,8,x,-;Out of memory: Killed process 447 (tail)\n", 0, 0, false},
		{"4,8,5,-;Out of memory: Killed process x (tail)\n", 0, 0, false},
		{"", 0, 0, false},
	} {
		pid, at, ok := parseOOMKill(c.record)
		if ok != c.ok || ok && (pid != c.pid || at != c.at) {
			t.Errorf("%q: %d %v %v, want %d %v %v", c.record, pid, at, ok, c.pid, c.at, c.ok)
		}
	}
}
