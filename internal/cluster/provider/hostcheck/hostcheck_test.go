package hostcheck

import (
	"strings"
	"testing"
	"testing/fstest"
)

// TestInotify: what a number of nodes takes, and no more than is enough for any.
func TestInotify(t *testing.T) {
	for nodes, fine := range map[int][2]string{1: {"64", "16384"}, 4: {"256", "65536"}, 100: {"512", "524288"}} {
		host := fstest.MapFS{
			"lib/modules/x":                          {},
			"proc/sys/fs/inotify/max_user_instances": {Data: []byte(fine[0] + "\n")},
			"proc/sys/fs/inotify/max_user_watches":   {Data: []byte(fine[1] + "\n")},
		}
		if found := Check(Host{Root: host}, nodes); len(found) != 0 {
			t.Errorf("%d nodes: %v", nodes, found)
		}
		host["proc/sys/fs/inotify/max_user_watches"] = &fstest.MapFile{Data: []byte("8192")}
		found := Check(Host{Root: host}, nodes)
		if len(found) != 1 || found[0].Fatal || !strings.Contains(found[0].String(), "8192 inotify watches") || !strings.HasSuffix(found[0].String(), ":\n  sysctl -w fs.inotify.max_user_watches=524288") {
			t.Errorf("%d nodes: %v", nodes, found)
		}
	}
}
