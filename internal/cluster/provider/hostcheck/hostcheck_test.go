package hostcheck

import (
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"
)

// TestInotify: the check requires the limits for this number of nodes, up to a maximum that is
// enough for any number.
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
		if len(found) != 1 || found[0].Fatal() || !strings.Contains(found[0].String(), "8192 inotify watches") || !strings.HasSuffix(found[0].String(), ":\n  sysctl -w fs.inotify.max_user_watches=524288") {
			t.Errorf("%d nodes: %v", nodes, found)
		}
	}
}

// TestReboot: the check for a boot unit runs only on hosts with systemd.
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
		found := Host{Root: test.host, Rootless: test.user, Home: "/home/me"}.Reboot(unit, "enable")
		switch {
		case test.fix == "" && len(found) > 0:
			t.Errorf("%s: %v", name, found)
		case test.fix != "" && (len(found) != 1 || found[0].Fatal() || found[0].Fix != test.fix || !strings.Contains(found[0].Evidence, unit+" is not enabled")):
			t.Errorf("%s: %v", name, found)
		}
	}
}

// TestModules: a module that may be built into the kernel is not a fatal problem.
func TestModules(t *testing.T) {
	const builtin = "lib/modules/6.1.0/modules.builtin"
	host := fstest.MapFS{
		"proc/sys/kernel/osrelease": {Data: []byte("6.1.0\n")}, "sys/module/overlay/x": {}, "lib/modules/6.1.0": {Mode: fs.ModeDir},
	}
	fatal := func(found []UnmetRequirement) (names []string) {
		for _, f := range found {
			if f.Fatal() {
				names = append(names, strings.Fields(f.Evidence)[3])
			}
		}
		return names
	}
	if found := Check(Host{Root: host, Rootless: true}, 1); len(found) != 5 || len(fatal(found)) > 0 {
		t.Errorf("nobody knows what the kernel has: %v", found)
	}
	host[builtin] = &fstest.MapFile{Data: []byte("kernel/net/ipv4/netfilter/ip_tables.ko\n")}
	if got := fatal(Check(Host{Root: host, Rootless: true}, 1)); len(got) != 1 || got[0] != "nf_nat" {
		t.Errorf("fatal without %q", got)
	}
	delete(host, builtin)
	delete(host, "lib/modules/6.1.0")
	if found := Check(Host{Root: host}, 1); len(found) != 1 || found[0].Fatal() || !strings.Contains(found[0].Evidence, "/lib/modules does not exist") {
		t.Errorf("no directory: %v", found)
	}
}

func TestIPVS(t *testing.T) {
	const dir = "lib/modules/6.1.0/"
	release := &fstest.MapFile{Data: []byte("6.1.0\n")}
	for name, test := range map[string]struct {
		host     fstest.MapFS
		rootless bool
		fine     bool
	}{
		"loaded":           {fstest.MapFS{"sys/module/ip_vs/x": {}}, true, true},
		"part of it":       {fstest.MapFS{dir + "modules.builtin": {Data: []byte("kernel/net/netfilter/ipvs/ip_vs.ko\n")}}, true, true},
		"to be loaded":     {fstest.MapFS{dir + "modules.builtin": {}, dir + "modules.dep": {Data: []byte("kernel/ip_vs.ko.xz: kernel/x.ko\n")}}, false, true},
		"not by everybody": {fstest.MapFS{dir + "modules.builtin": {}, dir + "modules.dep": {Data: []byte("kernel/ip_vs.ko.xz:\n")}}, true, false},
		"another":          {fstest.MapFS{dir + "modules.builtin": {}, dir + "modules.dep": {Data: []byte("kernel/ip_vs_rr.ko: kernel/ip_vs.ko\n")}}, false, false},
		"none":             {fstest.MapFS{}, false, false},
	} {
		test.host["proc/sys/kernel/osrelease"] = release
		found := IPVS(Host{Root: test.host, Rootless: test.rootless})
		if (found == nil) != test.fine || found != nil && (!found.Fatal() || !strings.Contains(found.Fix, "nftables")) {
			t.Errorf("%s: %v", name, found)
		}
	}
}
