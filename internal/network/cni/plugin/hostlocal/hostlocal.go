// Package hostlocal is the IPAM plugin host-local. Allocation, files and lock are those of the
// reference, whose packages it uses: both can work on one store at the same time.
package hostlocal

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/allocator"

	"github.com/berthrun/berth/internal/network/cni/plugin"
)

// New returns the plugin.
func New() *plugin.Plugin {
	return &plugin.Plugin{Type: "host-local", IPAM: true, Versions: version.All, Options: options(), Load: plugin.Loads(read), Add: add, Del: del, Check: check}
}

func options() plugin.Options {
	ranges := plugin.Options{"subnet": nil, "rangeStart": nil, "rangeEnd": nil, "gateway": nil}
	route := plugin.Options{"dst": nil, "gw": nil, "mtu": nil, "advmss": nil, "priority": nil, "table": nil, "scope": nil}
	ipam := plugin.Options{
		"type": nil, "name": nil, "routes": route, "dataDir": nil, "resolvConf": nil, "ranges": ranges,
	}
	maps.Copy(ipam, ranges)
	return plugin.Options{"ipam": ipam}
}

// use runs fn with the configuration and the store of its network.
func use(c *plugin.Call, fn func(*allocator.IPAMConfig, *store) error) error {
	conf, err := read(c)
	if err != nil {
		return err
	}
	return useStore(c, conf, func(s *store) error { return fn(conf, s) })
}

func read(c *plugin.Call) (*allocator.IPAMConfig, error) {
	c.Stage("read the configuration")
	conf, _, err := allocator.LoadIPAMConfig(c.Config, c.Args)
	return conf, err
}

// useStore runs fn with the store of the network, and makes the store if there is none.
func useStore(c *plugin.Call, conf *allocator.IPAMConfig, fn func(*store) error) error {
	c.Stage("open the store")
	s, err := openStore(conf.Name, conf.DataDir)
	if err != nil {
		return err
	}
	defer s.Close()
	return fn(s)
}

func add(_ context.Context, c *plugin.Call) (types.Result, error) {
	result := &types100.Result{CNIVersion: types100.ImplementedSpecVersion}
	conf, err := read(c)
	if err != nil {
		return nil, err
	}
	if conf.ResolvConf != "" {
		if result.DNS, err = readResolvConf(conf.ResolvConf); err != nil {
			return nil, err
		}
	}
	err = useStore(c, conf, func(s *store) (err error) {
		c.Stage("reserve addresses")
		result.IPs, err = reserve(c, conf, s)
		return err
	})
	if err != nil {
		return nil, err
	}
	result.Routes = conf.Routes
	return result, nil
}

// reserve takes one address of each range set, and gives all of them back on an error.
func reserve(c *plugin.Call, conf *allocator.IPAMConfig, s *store) (ips []*types100.IPConfig, err error) {
	var used []*allocator.IPAllocator
	defer func() {
		if err == nil {
			return
		}
		for _, a := range used {
			_ = a.Release(c.ContainerID, c.IfName) // DEL repeats it
		}
	}()
	requested := map[string]net.IP{}
	for _, ip := range conf.IPArgs {
		requested[ip.String()] = ip
	}
	for i := range conf.Ranges {
		set := &conf.Ranges[i]
		var wanted net.IP
		for _, text := range slices.Sorted(maps.Keys(requested)) {
			if set.Contains(requested[text]) {
				wanted = requested[text]
				delete(requested, text)
				break
			}
		}
		a := allocator.NewIPAllocator(set, s, i)
		ip, err := a.Get(c.ContainerID, c.IfName, wanted)
		if err != nil {
			return nil, fmt.Errorf("failed to allocate for range %d: %w", i, err)
		}
		used, ips = append(used, a), append(ips, ip)
	}
	if len(requested) > 0 {
		return nil, errors.New("failed to allocate all requested IPs: " + strings.Join(slices.Sorted(maps.Keys(requested)), " "))
	}
	return ips, nil
}

func del(_ context.Context, c *plugin.Call) error {
	return use(c, func(conf *allocator.IPAMConfig, s *store) error {
		c.Stage("release addresses")
		var faults []string
		for i := range conf.Ranges {
			if err := allocator.NewIPAllocator(&conf.Ranges[i], s, i).Release(c.ContainerID, c.IfName); err != nil {
				faults = append(faults, err.Error())
			}
		}
		if faults != nil {
			return errors.New(strings.Join(faults, ";"))
		}
		return nil
	})
}

func check(_ context.Context, c *plugin.Call) error {
	return use(c, func(_ *allocator.IPAMConfig, s *store) error {
		c.Stage("look for the address")
		if !s.FindByID(c.ContainerID, c.IfName) {
			return fmt.Errorf("host-local: Failed to find address added by container %v", c.ContainerID)
		}
		return nil
	})
}

// readResolvConf reads a file in the format of resolv.conf(5).
func readResolvConf(file string) (types.DNS, error) {
	var dns types.DNS
	f, err := os.Open(file)
	if err != nil {
		return dns, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) < 2 || strings.HasPrefix(words[0], "#") || strings.HasPrefix(words[0], ";") {
			continue
		}
		switch words[0] {
		case "nameserver":
			dns.Nameservers = append(dns.Nameservers, words[1])
		case "domain":
			dns.Domain = words[1]
		case "search":
			dns.Search = append(dns.Search, words[1:]...)
		case "options":
			dns.Options = append(dns.Options, words[1:]...)
		}
	}
	return dns, lines.Err()
}
