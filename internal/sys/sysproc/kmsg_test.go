package sysproc

import (
	"testing"
	"time"
)

func TestParseOOMKill(t *testing.T) {
	for _, c := range []struct {
		record string
		want   oomKill
		ok     bool
	}{
		{
			"3,1234,136377939,-;Memory cgroup out of memory: Killed process 447 (tail) total-vm:18288kB, anon-rss:16000kB, UID:0 oom_score_adj:1000\n",
			oomKill{pid: 447, at: 136377939 * time.Microsecond},
			true,
		},
		{"3,7,5,-,caller=T9;Out of memory: Killed process 12 (a b) total-vm:1kB\n SUBSYSTEM=x\n", oomKill{pid: 12, at: 5 * time.Microsecond}, true},
		{
			"6,8,5,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/pods/c.scope,task_memcg=/pods/c.scope,task=a,task=b,pid=447,uid=0\n",
			oomKill{cgroup: "/pods/c.scope", at: 5 * time.Microsecond},
			true,
		},
		{"6,8,5,-;oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),task=tail,pid=447,uid=0\n", oomKill{}, false},
		{"4,8,5,-;say: Killed process 447 (tail)\n", oomKill{}, false},
		{"4,8,x,-;Out of memory: Killed process 447 (tail)\n", oomKill{}, false},
		{"4,8,5,-;Out of memory: Killed process x (tail)\n", oomKill{}, false},
		{"", oomKill{}, false},
	} {
		got, ok := parseOOMKill(c.record)
		if ok != c.ok || ok && got != c.want {
			t.Errorf("%q: %+v %v, want %+v %v", c.record, got, ok, c.want, c.ok)
		}
	}
}

func TestOOMKillInCgroup(t *testing.T) {
	kill := oomKill{cgroup: "/kubepods.slice/c.scope/below"}
	for name, want := range map[string]bool{"c.scope": true, "below": true, "c": false, "scope": false, "": false} {
		if got := kill.in(name); got != want {
			t.Errorf("in(%q) = %v", name, got)
		}
	}
}
