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

// TestReboot: what starts containers when the host boots is asked for where there is systemd.
func TestReboot(t *testing.T) {
	const unit = "podman-restart.service"
	files := func(names ...string) fstest.MapFS {
		host := fstest.MapFS{}
		for _, name := range names {
			host[name] = &fstest.MapFile{}
		}
		return host
	}
	for name, test := range map[string]struct {
		host fstest.MapFS
		user bool
		fix  string
	}{
		"enabled":            {host: files("run/systemd/system/x", "etc/systemd/system/default.target.wants/"+unit)},
		"by the vendor":      {host: files("run/systemd/system/x", "usr/lib/systemd/system/multi-user.target.wants/"+unit)},
		"no systemd":         {host: files("etc/x")},
		"not enabled":        {host: files("run/systemd/system/x", "usr/lib/systemd/system/"+unit), fix: "systemctl enable " + unit},
		"of a user":          {host: files("run/systemd/system/x", "home/me/.config/systemd/user/default.target.wants/"+unit), user: true},
		"of root, of a user": {host: files("run/systemd/system/x", "etc/systemd/system/default.target.wants/"+unit), user: true, fix: "systemctl --user enable " + unit + "\nloginctl enable-linger"},
	} {
		found := Host{Root: test.host, Rootless: test.user, Home: "/home/me"}.Reboot(unit)
		switch {
		case test.fix == "" && len(found) > 0:
			t.Errorf("%s: %v", name, found)
		case test.fix != "" && (len(found) != 1 || found[0].Fatal || found[0].Fix != test.fix || !strings.Contains(found[0].Problem, unit+" is not enabled")):
			t.Errorf("%s: %v", name, found)
		}
	}
}
