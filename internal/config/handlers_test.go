package config

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestHandlersAreRead(t *testing.T) {
	cfg, err := LoadDaemon(write(t, `
[runtime]
default_handler = "runc"
[handlers.runc]
kind = "oci"
path = "/usr/sbin/runc"
args = ["--debug"]
privileged_without_host_devices = true
pod_annotations = []
[handlers.shim]
kind = "shim"
path = "io.containerd.runc.v2"
options = ["BinaryName=/opt/runc", "NoNewKeyring=true"]
[handlers.gvisor]
kind = "shim"
path = "io.containerd.runsc.v1"
sandbox = "runtime"
options = ["TypeUrl=io.containerd.runsc.v1.options", "ConfigPath=/etc/runsc.toml"]
[handlers."a.b"]
kind = "builtin"
writable_limit = 0
snapshotter = "stargz"
platform = "wasi/wasm"
[handlers.limited]
kind = "builtin"
writable_limit = 1048576
[image]
snapshotters = ["stargz=/run/stargz.sock"]
`), nil)
	if err != nil {
		t.Fatal(err)
	}
	yes, limit, none := true, 1<<20, 0
	want := map[string]Handler{
		"runc":    {Kind: "oci", Path: "/usr/sbin/runc", Args: []string{"--debug"}, PrivilegedNoDevices: &yes, PodAnnotations: []string{}},
		"shim":    {Kind: "shim", Path: "io.containerd.runc.v2", Options: []string{"BinaryName=/opt/runc", "NoNewKeyring=true"}},
		"a.b":     {Kind: "builtin", WritableLimit: &none, Snapshotter: "stargz", Platform: "wasi/wasm"},
		"limited": {Kind: "builtin", WritableLimit: &limit},
		"gvisor": {
			Kind: "shim", Path: "io.containerd.runsc.v1", Sandbox: "runtime",
			Options: []string{"TypeUrl=io.containerd.runsc.v1.options", "ConfigPath=/etc/runsc.toml"},
		},
	}
	if diff := cmp.Diff(want, cfg.Handlers); diff != "" {
		t.Error(diff)
	}
	again, err := LoadDaemon(write(t, Sample(cfg)), nil)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(cfg, again); diff != "" {
		t.Errorf("the printed configuration reads back otherwise:\n%s", diff)
	}
}

func TestFaultsOfHandlers(t *testing.T) {
	for text, want := range map[string]string{
		"[handlers.x]\nkind = 'kata'":                                                                                       ":2: handlers.x.kind: \"kata\": want one of builtin, oci, shim",
		"[handlers.x]\npath = '/p'":                                                                                         "handlers.x.kind: \"\": want one of builtin, oci",
		"[handlers.x]\nkind = 'shim'":                                                                                       "handlers.x.path: \"\": want the absolute path of a shim's program, or a runtime's type",
		"[handlers.x]\nkind = 'shim'\npath = 'runc'":                                                                        ":3: handlers.x.path: \"runc\": want the absolute path",
		"[handlers.x]\nkind = 'shim'\npath = '/s'\nargs = ['x']":                                                            ":4: handlers.x.args: kind shim has no arguments",
		"[handlers.x]\nkind = 'shim'\npath = '/s'\noptions = ['x']":                                                         ":4: handlers.x.options: \"x\": want Name=value",
		"[handlers.x]\nkind = 'shim'\npath = '/s'\noptions = ['Root=/r']":                                                   ":4: handlers.x.options: Root: no such option; there are ConfigBody, ConfigPath, TypeUrl",
		"[handlers.x]\nkind = 'shim'\npath = 'io.containerd.runc.v2'\noptions = ['Root=/r']":                                ":4: handlers.x.options: Root: berth sets it",
		"[handlers.x]\nkind = 'shim'\npath = 'io.containerd.runc.v2'\noptions = ['IoUid=x']":                                ":4: handlers.x.options: IoUid: \"x\": want a number",
		"[handlers.x]\nkind = 'oci'\npath = '/r'\noptions = ['a=b']":                                                        ":4: handlers.x.options: kind oci has no options",
		"[handlers.x]\nkind = 'oci'":                                                                                        "handlers.x.path: \"\": want the absolute path",
		"[handlers.x]\nkind = 'oci'\npath = 'runc'":                                                                         ":3: handlers.x.path: \"runc\": want the absolute path",
		"[handlers.x]\nkind = 'oci'\npath = '/r'\nroot = '/'":                                                               ":4: handlers.x.root: ",
		"[handlers.x]\nkind = 'oci'\npath = '/r'\nruntime = '/'":                                                            ":4: handlers.x.runtime: no such key; a handler has kind, path, ",
		"[handlers.x]\nkind = 'oci'\npath = '/r'\nsandbox = 'runtime'":                                                      ":4: handlers.x.sandbox: kind oci has none: a runtime that is the sandbox itself needs its shim",
		"[handlers.x]\nkind = 'shim'\npath = '/r'\nsandbox = 'pod'":                                                         ":4: handlers.x.sandbox: \"pod\": want \"runtime\", \"api\", or nothing",
		"[handlers.x]\nkind = 'builtin'\nsandbox = 'runtime'":                                                               ":3: handlers.x.sandbox: kind builtin has no program",
		"[handlers.x]\nkind = 'builtin'\npath = '/r'":                                                                       ":3: handlers.x.path: kind builtin has no program",
		"[handlers.x]\nkind = 'builtin'\npod_annotations = ['a[']":                                                          ":3: handlers.x.pod_annotations: ",
		"[handlers.x]\nkind = 5":                                                                                            ":2: handlers.x.kind: 5: want a string",
		"[handlers.X]\nkind = 'builtin'":                                                                                    ":1: handlers.X: ",
		"[handlers]\nx = 1":                                                                                                 ":2: handlers.x: want a table",
		"handlers = 1":                                                                                                      ":1: handlers: 1: want a table",
		"[runtime]\ndefault_handler = 'x'":                                                                                  ":2: runtime.default_handler: \"x\": there is no [handlers.x]",
		"[handlers.x]\nkind='builtin'\nprivileged_without_host_devices = 'y'":                                               ":3: handlers.x.privileged_without_host_devices: y: want true or false",
		"[handlers.x]\nkind = 'builtin'\nhooks_dirs = ['x']":                                                                ":3: handlers.x.hooks_dirs",
		"[handlers.x]\nkind = 'builtin'\nbase_runtime_spec = 'x'":                                                           ":3: handlers.x.base_runtime_spec: \"x\": want an absolute path",
		"[handlers.x]\nkind = 'builtin'\nseccomp_profile = 'x'":                                                             ":3: handlers.x.seccomp_profile: \"x\": want an absolute path",
		"[handlers.x]\nkind = 'builtin'\ncni_conf_dir = 'x'":                                                                ":3: handlers.x.cni_conf_dir: \"x\": want an absolute path",
		"[handlers.x]\nkind = 'builtin'\nwritable_limit = 'x'":                                                              ":3: handlers.x.writable_limit: x: want a whole number",
		"[handlers.x]\nkind = 'builtin'\nwritable_limit = 4096":                                                             ":3: handlers.x.writable_limit: 4096: want 1048576 to ",
		"[handlers.x]\nkind = 'builtin'\nsnapshotter = 'y'":                                                                 ":3: handlers.x.snapshotter: \"y\": is not in image.snapshotters",
		"[handlers.x]\nkind = 'builtin'\nsnapshotter = 'y'\nwritable_limit = 1048576\n[image]\nsnapshotters = ['y=/run/y']": ":3: handlers.x.snapshotter: \"y\": cannot limit what containers write, and handlers.x.writable_limit is 1048576; set handlers.x.writable_limit = 0",
		"[handlers.x]\nkind = 'builtin'\nsnapshotter = 'y'\n[image]\nsnapshotters = ['y=/run/y']\n[defaults]\nwritable_limit = 1048576": ":3: handlers.x.snapshotter: \"y\": cannot limit what containers write, and defaults.writable_limit is 1048576; set handlers.x.writable_limit = 0",
		"[handlers.x]\nkind = 'builtin'\nplatform = 'wasm'":                                                                             ":3: handlers.x.platform: \"wasm\": want os/arch or os/arch/variant, such as wasi/wasm or linux/arm64",
		"[runtime]\ndefault_handler = 'x'\n[handlers.x]\nkind = 'builtin'\nplatform = 'wasi/wasm'":                                      ":2: runtime.default_handler: \"x\": the handler has a platform of its own (wasi/wasm)",
		"[handlers.x]\nkind = 'builtin'\nsnapshotter = 'erofs'\n[image]\nsnapshotter = 'native'":                                        ":3: handlers.x.snapshotter: \"erofs\": its root filesystems are overlays, and image.snapshotter is native",
		"[image]\nsnapshotters = ['erofs=/run/s']":                                                                                      ":2: image.snapshotters: \"erofs=/run/s\": erofs is the name of berth's own",
		"[image]\nsnapshotters = ['/run/s']":                                                                                            ":2: image.snapshotters: \"/run/s\": want NAME=/PATH/OF/ITS/SOCKET",
		"[image]\nsnapshotters = ['a,b=/run/s']":                                                                                        ":2: image.snapshotters: \"a,b=/run/s\": want NAME=",
		"[image]\nsnapshotters = ['a=run/s']":                                                                                           ":2: image.snapshotters: \"a=run/s\": want NAME=",
		"[image]\nsnapshotters = ['overlayfs=/run/s']":                                                                                  ":2: image.snapshotters: \"overlayfs=/run/s\": overlayfs is the name of berth's own",
		"[image]\nsnapshotters = ['a=/run/s', 'a=/run/t']":                                                                              ":2: image.snapshotters: \"a=/run/t\": the name is there twice",
		"[network]\nmode='builtin'\n[handlers.x]\nkind = 'builtin'\ncni_conf_dir = '/x'":                                                ":5: handlers.x.cni_conf_dir: \"/x\": is not used, as network.mode is builtin",
	} {
		_, err := LoadDaemon(write(t, text), nil)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}

func TestHandlersAreReloaded(t *testing.T) {
	a, b := DefaultDaemon(), DefaultDaemon()
	b.Handlers = map[string]Handler{"x": {Kind: "builtin"}}
	if reloadable, restart := Changed(a, b); !slices.Equal(reloadable, []string{"handlers"}) || len(restart) > 0 {
		t.Errorf("reloadable %v, restart %v", reloadable, restart)
	}
	if merged := Reloaded(a, b); len(merged.Handlers) != 1 || len(a.Handlers) != 0 {
		t.Errorf("merged %+v", merged.Handlers)
	}
}
