package provider

import "testing"

// FuzzAnswers: for any output of an engine's tool, the parsers do not panic and return valid
// addresses and ports.
func FuzzAnswers(f *testing.F) {
	for _, seed := range []string{
		`{"host":{"cgroupVersion":"v2","cgroupControllers":["cpu"]},"store":{"graphDriverName":"overlay","graphStatus":{"Backing Filesystem":"xfs"}}}`,
		`{"Driver":"overlay2","DriverStatus":[["Backing Filesystem","extfs"],[]],"SecurityOptions":["name=seccomp,profile=default","name=rootless"],"CgroupVersion":"2"}`,
		`[{"Name":"/n","ID":"i","Config":{"Labels":{"a":"b"}},"State":{"Status":"running","Running":true},"NetworkSettings":{"Ports":{"6443/tcp":[{"HostIp":"::1","HostPort":"6443"},null]},` +
			`"Networks":{"kind":{"IPAddress":"10.0.0.2","GlobalIPv6Address":"fd00::2"}}},"HostConfig":{"PortBindings":[{"hostPort":70000,"containerPort":80,"protocol":"udp"}]}}]`,
		`[{"NetworkSettings":{"Ports":[{"hostPort":70000,"containerPort":6443,"protocol":"tcp"}]}},null]`,
		`[{"Id":"x","IPAM":{"Config":[{"Subnet":"10.0.0.0/8"}]},"plugins":[{"ipam":{"ranges":[[{"subnet":"fd00::/64"}]]}}],"Containers":{"a":{}}}]`,
		`[null]`, `null`, ``,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, read := range []func([]byte, *Facts) error{podmanInfo, dockerInfo} {
			var facts Facts
			if read(text, &facts) == nil {
				(&CLI{facts: facts}).demands()
			}
		}
		if networks, err := readNetworks(text); err == nil {
			for _, n := range networks {
				for _, subnet := range n.subnets {
					if !subnet.IsValid() {
						t.Errorf("%s has the subnet %v", text, subnet)
					}
				}
			}
		}
		nodes, err := readContainers(text)
		if err != nil {
			return
		}
		for _, n := range nodes {
			if n.IPv4.IsValid() && !n.IPv4.Is4() || n.IPv6.IsValid() && !n.IPv6.Is6() {
				t.Errorf("%s has the addresses %v and %v", text, n.IPv4, n.IPv6)
			}
			for _, p := range n.Ports {
				if p.Host < 1 || p.Host > 65535 || p.Container < 1 || p.Container > 65535 {
					t.Errorf("%s has the port %+v", text, p)
				}
			}
			if at, err := n.Endpoint(6443); err == nil && at.Port() == 0 {
				t.Errorf("%s is at %v", text, at)
			}
		}
	})
}
