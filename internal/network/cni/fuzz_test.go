package cni

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/types/create"

	"github.com/berthrun/berth/internal/network"
)

// FuzzPlugins: an accepted configuration can be read again from its bytes, which DEL uses later. An
// accepted result of a plugin gives the pod an address.
func FuzzPlugins(f *testing.F) {
	f.Add(true, []byte(`{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"bridge","ipam":{"type":"host-local"}},{"type":"portmap"}]}`),
		[]byte(`{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":"/x"}],"ips":[{"address":"10.1.0.5/16","interface":0}]}`))
	f.Add(false, []byte(`{"cniVersion":"0.3.1","name":"n","type":"ptp"}`),
		[]byte(`{"cniVersion":"0.2.0","ip4":{"ip":"10.1.0.5/16"},"ip6":{"ip":"fd00::5/64"}}`))
	f.Add(true, []byte(`{"name":" ","plugins":[null]}`), []byte(`{"cniVersion":"1.1.0","ips":[{"address":"::ffff:1.2.3.4/128","interface":-1}]}`))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, isList bool, conf, answer []byte) {
		file := filepath.Join(dir, "10.conf")
		if isList {
			file += "list"
		}
		if err := os.WriteFile(file, conf, 0o600); err != nil {
			t.Fatal(err)
		}
		if list, err := load(file); err == nil {
			again, err := libcni.NetworkConfFromBytes(list.Bytes)
			if err != nil || again.Name != list.Name || len(again.Plugins) != len(list.Plugins) {
				t.Errorf("%s became %s: %v", conf, list.Bytes, err)
			}
		} else if fault := faultOf(file, err); !strings.HasPrefix(fault.Error(), file+":") || !errors.Is(fault, err) {
			t.Errorf("%s: the fault %v", conf, fault)
		}
		checkAnswer(t, answer)
	})
}

func checkAnswer(t *testing.T, answer []byte) {
	t.Helper()
	parsed, err := create.CreateFromBytes(answer)
	if err != nil {
		return
	}
	got, err := readResult([]types.Result{parsed}, IPv4First)
	if err != nil {
		return
	}
	for _, ip := range got.IPs {
		if !ip.IsValid() || ip.Is4In6() {
			t.Errorf("%s gave the address %v", answer, ip)
		}
	}
	if !json.Valid(got.CNI) {
		t.Errorf("%s is kept as %s", answer, got.CNI)
	}
}

// FuzzAnnotations: no annotation, name or port of a pod can forge an argument of a plugin, or set a
// rate beyond the limits.
func FuzzAnnotations(f *testing.F) {
	f.Add("10M", "1Gi", "web", "default", "uid", int32(80))
	f.Add("1e3", "-0", "a;K8S_POD_NAME=b", "=", "\n", int32(-1))
	f.Fuzz(func(t *testing.T, ingress, egress, name, namespace, uid string, port int32) {
		rec := &record{Attachment: network.Attachment{
			SandboxID: "id", Name: name, Namespace: namespace, UID: uid,
			Annotations: map[string]string{network.AnnotationIngress: ingress, network.AnnotationEgress: egress},
		}}
		rt, err := runtimeConf(rec)
		if err != nil {
			return
		}
		for _, arg := range rt.Args {
			if bytes.ContainsAny([]byte(arg[1]), ";=\n") {
				t.Errorf("the argument %q", arg)
			}
		}
		if limits, ok := rt.CapabilityArgs[capBandwidth].(*bandwidth); ok {
			for _, rate := range []uint64{limits.IngressRate, limits.EgressRate} {
				if rate < 1e3 || rate > 1e15 {
					t.Errorf("%q and %q: the rate %d", ingress, egress, rate)
				}
			}
		}
	})
}
