package berthtoml

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestText(t *testing.T) {
	for name, c := range map[string]struct {
		file File
		want string
	}{
		"nothing": {File{}, ""},
		"no CDI":  {File{CDISpecDirs: []string{}}, "[runtime]\ncdi_spec_dirs = []\n"},
		"handlers": {
			File{DefaultHandler: "b", Handlers: []Handler{
				{Name: "b", Kind: "oci", Path: "/b"},
				{Name: "a", Kind: "oci", Path: "/a", Root: "/run/a", PodAnnotations: []string{"x.*"}, PrivilegedWithoutHostDevices: true},
			}},
			`[handlers]
[handlers.a]
kind = 'oci'
path = '/a'
pod_annotations = ['x.*']
privileged_without_host_devices = true
root = '/run/a'

[handlers.b]
kind = 'oci'
path = '/b'

[runtime]
default_handler = 'b'
`,
		},
		"all": {
			File{
				Engine: "docker", Socket: "/run/s", Root: "/r", State: "/s", LogLevel: "debug", CgroupDriver: "systemd", SELinux: "off",
				CDISpecDirs: []string{"/cdi"}, RegistryDirs: []string{"/certs"},
				Network: Network{
					Mode: "builtin", ConfDir: "/conf", BinDirs: []string{"/bin"}, Subnets: []string{"10.1.0.0/24"}, MTU: 1400,
					AwaitPodCIDR: true, ClusterSubnets: []string{"10.0.0.0/8", "fd00::/8"},
				},
			},
			`engine = 'docker'
listen = 'unix:///run/s'
root = '/r'
state = '/s'

[image]
registry_config_dirs = ['/certs']

[log]
level = 'debug'

[network]
await_pod_cidr = true
bin_dirs = ['/bin']
cluster_subnets = ['10.0.0.0/8', 'fd00::/8']
conf_dir = '/conf'
mode = 'builtin'
mtu = 1400
subnets = ['10.1.0.0/24']

[runtime]
cdi_spec_dirs = ['/cdi']
cgroup_driver = 'systemd'
selinux = 'off'
`,
		},
	} {
		got, err := c.file.Text("# Comment.\n")
		if diff := cmp.Diff("# Comment.\n"+c.want, got); err != nil || diff != "" {
			t.Errorf("%s: %v %s", name, err, diff)
		}
	}
}
