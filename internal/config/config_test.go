package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/internal/errs"
)

func write(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "berth.toml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestSampleOfDefaultLoadsAsDefault(t *testing.T) {
	cfg, err := LoadDaemon(write(t, Sample(DefaultDaemon())), nil)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(DefaultDaemon(), cfg); diff != "" {
		t.Errorf("the sample changes a default:\n%s", diff)
	}
}

func TestFileThenFlags(t *testing.T) {
	file := write(t, "root = '/a'\n[network]\nmode = 'builtin'\nmtu = 1400\n[jobs]\nstage_timeout = '90s'\n")
	cfg, err := LoadDaemon(file, map[string]string{"root": "/b", "log.level": "debug"})
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Root != "/b" || cfg.Network.Mode != "builtin" || cfg.Network.MTU != 1400 || cfg.Log.Level != "debug" ||
		time.Duration(cfg.Jobs.StageTimeout) != 90*time.Second {
		t.Errorf("got %+v", cfg)
	}
}

// TestLinksOfTheStateDirectory: /var/run is a link to /run. libcontainer takes no root filesystem behind a link.
func TestLinksOfTheStateDirectory(t *testing.T) {
	dir := t.TempDir()
	real, err := filepath.EvalSymlinks(dir)
	if err == nil {
		err = errors.Join(os.MkdirAll(filepath.Join(dir, "run", "there"), 0o700), os.Symlink("run", filepath.Join(dir, "link")), os.Symlink("gone", filepath.Join(dir, "dangling")))
	}
	if err != nil {
		t.Fatal(err)
	}
	for state, want := range map[string]string{
		"run/there": "run/there", "link/there": "run/there", "link/new/berth": "run/new/berth", "link": "run", "dangling/berth": "dangling/berth",
	} {
		cfg, err := LoadDaemon("", map[string]string{"state": filepath.Join(dir, state)})
		if err != nil || cfg.State != filepath.Join(real, want) {
			t.Errorf("state %s: %+v, %v", state, cfg, err)
		}
	}
	if cfg, err := LoadDaemon("", map[string]string{"state": "/run/berth/"}); err != nil || cfg.State != DefaultState {
		t.Errorf("with a slash: %+v, %v", cfg, err)
	}
	if _, err := LoadDaemon("", map[string]string{"state": "run/berth"}); err == nil || !strings.Contains(err.Error(), "want an absolute path") {
		t.Errorf("a relative path: %v", err)
	}
}

func TestEveryFaultIsReportedWithItsLine(t *testing.T) {
	file := write(t, strings.Join([]string{
		`root = 5`,
		`state = "relative"`,
		`listn = "unix:///x"`,
		`[network]`,
		`mode = "bridge"`,
		`mtu = "big"`,
		`[image]`,
		`no_progress_timeout = "soon"`,
		`[nets]`,
		`x = 1`,
	}, "\n"))
	_, err := LoadDaemon(file, nil)
	var faults Faults
	if !errors.As(err, &faults) || !errors.Is(err, errs.Invalid) {
		t.Fatalf("got %v, want Faults", err)
	}
	want := []string{
		":1: root: 5: want a string",
		":2: state: \"relative\": want an absolute path",
		":3: listn: no such key; did you mean listen?",
		":5: network.mode: \"bridge\": want one of cni, builtin, kubenet",
		":6: network.mtu: big: want a whole number",
		":8: image.no_progress_timeout: ",
		":9: nets: no such key; ",
	}
	if len(faults) != len(want) {
		t.Fatalf("got %d faults, want %d:\n%v", len(faults), len(want), err)
	}
	for i, fault := range faults {
		if !strings.HasPrefix(fault.String(), file+want[i]) {
			t.Errorf("fault %d: %s\nwant prefix   %s", i, fault, file+want[i])
		}
	}
}

// TestFaultsLeaveTheOtherKeys: doctor examines the directories of a configuration with which berth does not start.
func TestFaultsLeaveTheOtherKeys(t *testing.T) {
	cfg, err := LoadDaemon(write(t, strings.Join([]string{
		`root = "/srv/berth"`,
		`state = "relative"`,
		`listen = "unix:///run/` + strings.Repeat("x", 120) + `"`,
		`[network]`,
		`mode = "bridge"`,
		`mtu = 1400`,
		`[handlers.one]`,
		`path = 7`,
	}, "\n")), nil)
	if !errors.Is(err, errs.Invalid) {
		t.Fatalf("got %v, want Faults", err)
	}
	usual := DefaultDaemon()
	if cfg.Root != "/srv/berth" || cfg.Network.MTU != 1400 {
		t.Errorf("keys without a fault: %q, %d", cfg.Root, cfg.Network.MTU)
	}
	if cfg.State != usual.State || cfg.Listen != usual.Listen || cfg.Network.Mode != usual.Network.Mode || len(cfg.Handlers) != 0 {
		t.Errorf("keys with a fault: %q, %q, %q, %v", cfg.State, cfg.Listen, cfg.Network.Mode, cfg.Handlers)
	}
}

func TestValuesThatTagsCannotJudge(t *testing.T) {
	const suite = "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"
	for text, want := range map[string]string{
		"listen = 'tcp://1.2.3.4:5'":                 "listen: ",
		"state = '/var/lib/berth'":                   "state: ",
		"state = '/" + strings.Repeat("s", 80) + "'": "state: ",
		"root = '/'":                                                      "root: ",
		"[network]\nsubnets = ['10.1.2.3/16']":                            "network.subnets: ",
		"[network]\nsubnets = ['10.0.0.0/8','11.0.0.0/8']":                "network.subnets: ",
		"[network]\nsubnets = ['127.0.0.0/8']":                            "network.subnets: subnet 127.0.0.0/8 has loopback",
		"[network]\nsubnets = ['0.0.0.0/0']":                              "network.subnets: subnet 0.0.0.0/0 has all addresses",
		"[network]\nsubnets = ['224.0.0.0/24']":                           "network.subnets: subnet 224.0.0.0/24 has loopback, multicast",
		"[network]\nsubnets = ['10.0.0.0/31']":                            "network.subnets: subnet 10.0.0.0/31 is too small",
		"[network]\nbridge = 'a-name-of-16-byte'":                         "network.bridge: ",
		"[jobs]\ntotal_timeout = '1m'":                                    "jobs.total_timeout: ",
		"[docker]\nendpoint = '/run/docker.sock'":                         "docker.endpoint: \"/run/docker.sock\": it has no scheme; want unix:///run/docker.sock",
		"[docker]\nendpoint = 'unix://run/docker.sock'":                   "docker.endpoint: \"unix://run/docker.sock\": want unix:///ABSOLUTE/PATH, such as unix:///run/docker.sock",
		"[docker]\nendpoint = 'unix://'":                                  "docker.endpoint: \"unix://\": it has no path; want unix:///ABSOLUTE/PATH, such as unix:///var/run/docker.sock",
		"[docker]\nendpoint = 'docker.sock'":                              "docker.endpoint: \"docker.sock\": want unix:///ABSOLUTE/PATH",
		"[docker]\nendpoint = ''":                                         "docker.endpoint: \"\": want unix:///ABSOLUTE/PATH",
		"[docker]\nendpoint = 'unix:///" + strings.Repeat("s", 107) + "'": "docker.endpoint: ",
		"[docker]\nendpoint = 'tcp://127.0.0.1:2375'":                     "docker.endpoint: \"tcp://127.0.0.1:2375\": want the unix socket of the engine (unix:///ABSOLUTE/PATH): the engine must be on this host",
		"[stream]\naddress = 'localhost'":                                 "stream.address: ",
		"[runtime]\nscope_prefix = 'a/b'":                                 "runtime.scope_prefix: ",

		"[image]\nsearch_registries = ['https://a.test/']":                                              "image.search_registries: \"https://a.test/\": has a scheme; want the host alone, such as a.test,",
		"[image]\nsearch_registries = ['a.test/team']":                                                  "image.search_registries: \"a.test/team\": has a path; want the host alone",
		"[image]\nsearch_registries = ['a b.test']":                                                     "image.search_registries: \"a b.test\": is not the host of a registry",
		"[image]\nsearch_registries = ['']":                                                             "image.search_registries: \"\": is not the host of a registry",
		"[image]\nsearch_registries = ['a.test', 'a.test']":                                             "image.search_registries: \"a.test\": is there twice",
		"[image]\nsearch_registries = ['index.docker.io']":                                              "image.search_registries: \"index.docker.io\": names of images have docker.io",
		"[image]\nsearch_registries = ['registry']":                                                     "image.search_registries: \"registry\": has neither a dot nor a port",
		"[image]\ndecryption_keys_dir = 'keys'":                                                         "image.decryption_keys_dir: \"keys\": want an absolute path",
		"[image]\nmax_total_downloads = -1":                                                             "image.max_total_downloads: -1: want 0 to 1024",
		"[image]\nlayer_connections = 0":                                                                "image.layer_connections: 0: want 1 to 16",
		"[image]\nlayer_part_mib = 0":                                                                   "image.layer_part_mib: 0: want 1 to 128",
		"[image]\nlayer_part_mib = 16\nparts_memory_mib = 8":                                            "image.parts_memory_mib: 8: is less than one part (image.layer_part_mib)",
		"[image]\nunpack_cgroup = 'unpack'":                                                             "image.unpack_cgroup: \"unpack\": want an absolute path",
		"[image]\nunpack_cgroup = '/'":                                                                  "image.unpack_cgroup: \"/\": want an absolute path",
		"[image]\nunpack_cgroup = 'a/b.slice'":                                                          "image.unpack_cgroup: \"a/b.slice\": want an absolute path",
		"[image]\ndownload_rate_mib = -1":                                                               "image.download_rate_mib: -1: want 0 to ",
		"[runtime]\nmax_log_line_size = 100":                                                            "runtime.max_log_line_size: ",
		"[runtime]\nselinux_category_range = 1":                                                         "runtime.selinux_category_range: ",
		"[runtime]\nabsent_mount_sources_to_reject = ['etc']":                                           "runtime.absent_mount_sources_to_reject: ",
		"[runtime]\npod_annotations = ['a[']":                                                           "runtime.pod_annotations: ",
		"[runtime]\napparmor_profile = 'unconfined'":                                                    "runtime.apparmor_profile: ",
		"[runtime]\nseccomp_profile = 'runtime/default'":                                                "runtime.seccomp_profile: ",
		"[runtime]\nprivileged_seccomp_profile = 'unconfined'":                                          "runtime.privileged_seccomp_profile: ",
		"[defaults]\nseccomp = 'default'":                                                               "defaults.seccomp: ",
		"engine = 'docker'\n[image]\npolicy = '/etc/containers/policy.json'":                            "image.policy: ",
		"[image]\nlookaside_dir = 'registries.d'":                                                       "image.lookaside_dir: \"registries.d\": want an absolute path",
		"engine = 'docker'\n[image]\npolicy_dir = '/etc/berth/policies'":                                "image.policy_dir: ",
		"engine = 'docker'\n[image]\nverifier_dir = '/opt/verifiers'":                                   "image.verifier_dir: ",
		"[defaults]\nmin_gomaxprocs = -1":                                                               "defaults.min_gomaxprocs: ",
		"[defaults]\nwritable_limit = 1024":                                                             "defaults.writable_limit: 1024: want 1048576 to ",
		"[runtime]\nfirst_project_id = 4294967295":                                                      "runtime.first_project_id: 4294967295: want 0 to 2146435072",
		"[runtime]\nfirst_project_id = 0\n[defaults]\nwritable_limit = 1048576":                         "defaults.writable_limit: 1048576: needs project quotas",
		"[defaults]\ncapabilities = ['CAP_FLY']":                                                        "defaults.capabilities: ",
		"[defaults]\nsysctls = ['kernel.panic=1']":                                                      "defaults.sysctls: ",
		"[defaults]\nenv = ['A']":                                                                       "defaults.env: ",
		"[defaults]\nulimits = ['nofile=2:1']":                                                          "defaults.ulimits: ",
		"[defaults]\ndevices = ['fuse']":                                                                "defaults.devices: ",
		"[nri]\nsocket = 'nri.sock'":                                                                    "nri.socket: ",
		"[nri]\nplugin_dir = 'plugins'":                                                                 "nri.plugin_dir: ",
		"[nri]\nplugin_request_timeout = '1ms'":                                                         "nri.plugin_request_timeout: ",
		"[nri]\nrequired_plugins = ['guard']":                                                           "nri.default_validator: ",
		"[stats]\npod_metrics = ['cpu', 'weather']":                                                     "stats.pod_metrics: \"weather\": want one of cpu, ",
		"[stats]\nperiod = '1ms'":                                                                       "stats.period: ",
		"[metrics]\nlisten = '9717'":                                                                    "metrics.listen: \"9717\": want HOST:PORT, such as 127.0.0.1:9717",
		"[metrics]\nlisten = '127.0.0.1:0'":                                                             "metrics.listen: \"127.0.0.1:0\": want a port from 1",
		"[metrics]\nlisten = 'node1:9717'":                                                              "metrics.listen: \"node1:9717\": want an IP address of this host or localhost",
		"[metrics]\nlisten = ':9717'":                                                                   "metrics.listen: \":9717\": is not a loopback address, and metrics without TLS are for loopback only; set metrics.tls_cert_file",
		"[metrics]\nlisten = '192.0.2.1:9717'\ntls_cert_file = '/c'":                                    "metrics.listen: \"192.0.2.1:9717\": is not a loopback address",
		"[metrics]\nlisten = '127.0.0.1:9717'\ntls_key_file = '/k'":                                     "metrics.tls_key_file: \"/k\": is of no use without metrics.tls_cert_file",
		"[metrics]\nlisten = '127.0.0.1:9717'\nclient_ca_file = '/k'":                                   "metrics.client_ca_file: \"/k\": is of no use without metrics.tls_cert_file",
		"[metrics]\nlisten = '127.0.0.1:9717'\ntls_cert_file = 'c'\ntls_key_file = '/k'":                "metrics.tls_cert_file: \"c\": want an absolute path",
		"[metrics]\nclient_ca_file = '/k'":                                                              "metrics.client_ca_file: \"/k\": is not used, as metrics.listen is \"\"",
		"[metrics]\nlisten = 'unix://run/m.sock'":                                                       "metrics.listen: \"unix://run/m.sock\": want unix:///ABSOLUTE/PATH",
		"[metrics]\nlisten = 'unix:///run/berth/berth.sock'":                                            "metrics.listen: \"unix:///run/berth/berth.sock\": is another socket of the daemon",
		"[page]\nlisten = '127.0.0.1:0'":                                                                "page.listen: \"127.0.0.1:0\": want a port from 1 to 65535, which a browser can be given",
		"[page]\nlisten = 'unix:///run/page.sock'":                                                      "page.listen: \"unix:///run/page.sock\": want HOST:PORT, such as 127.0.0.1:9718",
		"[page]\nlisten = ':9718'":                                                                      "page.listen: \":9718\": is not a loopback address, and a page without TLS is for loopback only; set page.tls_cert_file",
		"[page]\nauth = 'password'":                                                                     "page.auth: \"password\": want one of token, none",
		"[page]\nclient_ca_file = '/k'":                                                                 "page.client_ca_file: \"/k\": is not used, as page.listen is \"\"",
		"[page]\nlisten = ':9718'\nauth = 'none'\ntls_cert_file = '/c'\ntls_key_file = '/k'":            "page.auth: \"none\": is for loopback addresses only",
		"[page]\nlisten = '127.0.0.1:9717'\n[metrics]\nlisten = '127.0.0.1:9717'":                       "page.listen: \"127.0.0.1:9717\": is metrics.listen, too",
		"[metrics]\npeers = ['docker']":                                                                 "metrics.peers: \"docker\": want one of containerd, crio, dockershim",
		"[stream]\ntls = 'self-signed'\ntls_cipher_suites = ['RC4']":                                    "stream.tls_cipher_suites: ",
		"[stream]\ntls_cipher_suites = ['" + suite + "']":                                               "stream.tls_cipher_suites: ",
		"[stream]\ntls = 'self-signed'\ntls_min_version = '1.3'\ntls_cipher_suites = ['" + suite + "']": "stream.tls_cipher_suites: ",
	} {
		_, err := LoadDaemon(write(t, text), nil)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want a fault of %q", text, err, want)
		}
	}
}

func TestSyntaxErrorHasALine(t *testing.T) {
	_, err := LoadDaemon(write(t, "root = '/a'\nstate == 3\n"), nil)
	if err == nil || !strings.Contains(err.Error(), ":2: ") {
		t.Errorf("got %v, want line 2", err)
	}
}

func TestChangedTellsReloadableKeysFromOthers(t *testing.T) {
	a, b := DefaultDaemon(), DefaultDaemon()
	b.Log.Level = "debug"
	b.Root = "/elsewhere"
	reloadable, restart := Changed(a, b)
	if diff := cmp.Diff([]string{"log.level"}, reloadable); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"root"}, restart); diff != "" {
		t.Error(diff)
	}
}

// A running daemon uses a combination of the old and the new configuration. Neither of them
// changes.
func TestReloadedTakesOverWhatItCan(t *testing.T) {
	current, next := DefaultDaemon(), DefaultDaemon()
	next.Log.Level, next.Default.Env, next.Jobs.StageTimeout = "debug", []string{"A=b"}, Duration(time.Minute)
	next.Root, next.Network.MTU, next.Stats.Period = "/elsewhere", 1400, Duration(time.Second)
	want := DefaultDaemon()
	want.Log.Level, want.Default.Env, want.Jobs.StageTimeout = "debug", []string{"A=b"}, Duration(time.Minute)
	if diff := cmp.Diff(want, Reloaded(current, next)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if diff := cmp.Diff(DefaultDaemon(), current); diff != "" {
		t.Errorf("the current one has changed:\n%s", diff)
	}
	reloadable, restart := Changed(current, next)
	if diff := cmp.Diff([]string{"log.level", "defaults.env", "jobs.stage_timeout"}, reloadable); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"root", "network.mtu", "stats.period"}, restart); diff != "" {
		t.Error(diff)
	}
}

func TestEveryFieldHasHelp(t *testing.T) {
	for _, section := range Sections(DefaultDaemon()) {
		for _, field := range section.Fields {
			if field.Help == "" || field.Name() == "" {
				t.Errorf("%q: a key without name or help", field.Key)
			}
		}
	}
}

// The page about other runtimes' options names only existing keys.
func TestPageOfPeersNamesOurKeys(t *testing.T) {
	page, err := os.ReadFile("../../docs/peers.md")
	if err != nil {
		t.Fatal(err)
	}
	known, sections := map[string]bool{}, []string{}
	for _, section := range Sections(DefaultDaemon()) {
		for _, field := range section.Fields {
			known[field.Key] = true
		}
		if section.Name != "" {
			sections = append(sections, section.Name)
		}
	}
	names := regexp.MustCompile("[|,:;.] `((?:"+strings.Join(sections, "|")+")\\.[a-z_]+)").FindAllStringSubmatch(string(page), -1)
	if len(names) < 20 {
		t.Errorf("only %d keys are named: %v", len(names), names)
	}
	for _, name := range names {
		if !known[name[1]] {
			t.Errorf("docs/peers.md names %s, which is no key", name[1])
		}
	}
}

// Only the berth with the default directories adopts by itself: others may use the same engine.
func TestAdopts(t *testing.T) {
	for name, c := range map[string]struct {
		engine, state, adopt string
		want                 bool
	}{
		"the default berth":      {"docker", DefaultState, "auto", true},
		"another berth":          {"docker", "/run/other", "auto", false},
		"another berth, on":      {"docker", "/run/other", "on", true},
		"the default berth, off": {"docker", DefaultState, "off", false},
		"another engine":         {"native", DefaultState, "auto", false},
		"another engine, on":     {"native", DefaultState, "on", false},
	} {
		cfg := DefaultDaemon()
		cfg.Engine, cfg.State, cfg.Docker.Adopt = c.engine, c.state, c.adopt
		if got := cfg.Adopts(); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestKeysWithoutEffect: only what somebody has changed, and what the engine does not use, is named.
func TestKeysWithoutEffect(t *testing.T) {
	const text = "engine = '%s'\n[runtime]\nselinux = 'off'\nlog_rate_mib = 32\nmax_log_line_size = 4096\n[image]\nmax_layer_gib = 3\n[network]\nmtu = 1400\n"
	for engine, want := range map[string]string{"native": "", "docker": "runtime.selinux image.max_layer_gib"} {
		cfg, err := LoadDaemon(write(t, fmt.Sprintf(text, engine)), nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(cfg.WithoutEffect(), " "); got != want {
			t.Errorf("with engine %s: %q, want %q", engine, got, want)
		}
	}
}

// TestPageOfDockerNamesKeysWithoutEffect: docs/docker.md has the keys that only another engine uses.
func TestPageOfDockerNamesKeysWithoutEffect(t *testing.T) {
	page, err := os.ReadFile("../../docs/docker.md")
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(string(page), "have no effect over a Docker Engine:")
	list, _, _ = strings.Cut(list, "\n\n")
	for _, field := range Fields(DefaultDaemon()) {
		if named := strings.Contains(list, "`"+field.Key+"`"); named != (field.Engine == "native") {
			t.Errorf("%s is named: %v; only engine %q uses it", field.Key, named, field.Engine)
		}
	}
}

// TestChecksOfOthers: what a check reports has its line like a fault of the text, and no key has both. A key of a flag has no
// line.
func TestChecksOfOthers(t *testing.T) {
	file := write(t, "root = '/a'\n[runtime]\nsupervisor = 'x'\nseccomp_profile = '/p'\n")
	_, err := LoadDaemon(file, map[string]string{"root": "/b"}, func(cfg *Daemon, report func(key, format string, args ...any)) {
		report("runtime.supervisor", "%q: no such file", cfg.Runtime.Supervisor)
		report("runtime.seccomp_profile", "%q: no such file", cfg.Runtime.SeccompProfile)
		report("root", "%q: no such file", cfg.Root)
	})
	want := Faults{
		{Key: "root", Problem: `"/b": no such file`},
		{File: file, Line: 3, Key: "runtime.supervisor", Problem: `"x": want an absolute path`},
		{File: file, Line: 4, Key: "runtime.seccomp_profile", Problem: `"/p": no such file`},
	}
	if diff := cmp.Diff(error(want), err); diff != "" {
		t.Error(diff)
	}
}

// TestEndpointOfTheFlag: the flag is checked like the file.
func TestEndpointOfTheFlag(t *testing.T) {
	_, err := LoadDaemon("", map[string]string{"docker.endpoint": "/var/run/docker.sock"})
	if err == nil || !strings.Contains(err.Error(), "want unix:///var/run/docker.sock") {
		t.Errorf("got %v", err)
	}
}

// TestAddressesOfMetrics: loopback addresses and sockets need no TLS; other addresses have it.
func TestAddressesOfMetrics(t *testing.T) {
	for _, text := range []string{
		"", "listen = '127.0.0.1:9717'", "listen = 'localhost:9717'", "listen = '[::1]:9717'", "listen = 'unix:///run/berth/metrics.sock'",
		"listen = ':9717'\ntls_cert_file = '/c'\ntls_key_file = '/k'\nclient_ca_file = '/a'",
		"listen = '[2001:db8::1]:9717'\ntls_cert_file = '/c'\ntls_key_file = '/k'",
	} {
		file := filepath.Join(t.TempDir(), "berth.toml")
		if err := os.WriteFile(file, []byte("[metrics]\n"+text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadDaemon(file, nil); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestEndpointsOfTraces: what can be a receiver, and what cannot.
func TestEndpointsOfTraces(t *testing.T) {
	for text, want := range map[string]string{
		"":                                   "",
		"endpoint = 'http://127.0.0.1:4317'": "",
		"endpoint = 'https://otel.example.org:4317'\ntls_ca_file = '/ca'\ntls_cert_file = '/c'\ntls_key_file = '/k'": "",
		"endpoint = 'http://[::1]:4318/otlp'\nprotocol = 'http'":                                                     "",
		"endpoint = '127.0.0.1:4317'":                               "traces.endpoint: \"127.0.0.1:4317\": want http://HOST:PORT",
		"endpoint = 'http://127.0.0.1'":                             "traces.endpoint: \"http://127.0.0.1\": want http://HOST:PORT",
		"endpoint = 'http://127.0.0.1:4317/x'":                      "has a path, which gRPC does not know",
		"endpoint = 'http://joe:hunter2@127.0.0.1:4317'":            "traces.endpoint: \"http://[hidden]@127.0.0.1:4317\": want no user",
		"endpoint = 'http://127.0.0.1:4317'\ntls_ca_file = '/ca'":   "traces.tls_ca_file: \"/ca\": is not used",
		"endpoint = 'https://127.0.0.1:4317'\ntls_ca_file = 'ca'":   "traces.tls_ca_file: \"ca\": want an absolute path",
		"endpoint = 'https://127.0.0.1:4317'\ntls_cert_file = '/c'": "traces.tls_cert_file: \"/c\": is of no use without traces.tls_key_file",
		"tls_key_file = '/k'":                                       "traces.tls_key_file: \"/k\": is not used",
		"protocol = 'udp'":                                          "traces.protocol: \"udp\": want one of grpc, http",
		"sampling_rate_per_million = 1000001":                       "traces.sampling_rate_per_million: 1000001: want 0 to 1000000",
	} {
		_, err := LoadDaemon(write(t, "[traces]\n"+text+"\n"), nil)
		switch {
		case want == "" && err != nil:
			t.Errorf("%q: %v", text, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%q: got %v, want %q", text, err, want)
		case err != nil && strings.Contains(err.Error(), "hunter2"):
			t.Errorf("%q: the fault shows the password", text)
		}
	}
}
