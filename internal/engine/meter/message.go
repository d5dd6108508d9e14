package meter

import (
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine"
)

// cpuUsage is nil for what has no cgroup yet.
func (m *Meter) cpuUsage(id string, f *engine.Figures) *runtimeapi.CpuUsage {
	usage := &runtimeapi.CpuUsage{
		Timestamp:            f.At.UnixNano(),
		UsageCoreNanoSeconds: value(f.CPU),
		Psi:                  psi(f.CPUPressure),
	}
	if rate, ok := m.rates.rate(id); ok {
		usage.UsageNanoCores = value(rate)
	}
	return usage
}

func memoryUsage(f *engine.Figures) *runtimeapi.MemoryUsage {
	usage := &runtimeapi.MemoryUsage{
		Timestamp:       f.At.UnixNano(),
		WorkingSetBytes: value(f.Memory.WorkingSet),
		UsageBytes:      value(f.Memory.Usage),
		RssBytes:        value(f.Memory.RSS),
		PageFaults:      value(f.Memory.MinorFaults),
		MajorPageFaults: value(f.Memory.MajorFaults),
		Psi:             psi(f.MemoryPressure),
	}
	if f.Memory.Limit != engine.NoLimit {
		usage.AvailableBytes = value(f.Memory.Limit - min(f.Memory.Limit, f.Memory.WorkingSet))
	}
	return usage
}

func swapUsage(f *engine.Figures) *runtimeapi.SwapUsage {
	if f.Swap == nil {
		return nil
	}
	usage := &runtimeapi.SwapUsage{Timestamp: f.At.UnixNano(), SwapUsageBytes: value(f.Swap.Usage)}
	if f.Swap.Limit != engine.NoLimit {
		usage.SwapAvailableBytes = value(f.Swap.Limit - min(f.Swap.Limit, f.Swap.Usage))
	}
	return usage
}

func ioUsage(f *engine.Figures) *runtimeapi.IoUsage {
	if f.IOPressure == nil {
		return nil
	}
	return &runtimeapi.IoUsage{Timestamp: f.At.UnixNano(), Psi: psi(f.IOPressure)}
}

func layerUsage(w *engine.Written) *runtimeapi.FilesystemUsage {
	if w == nil {
		return nil
	}
	return &runtimeapi.FilesystemUsage{
		Timestamp:  w.At.UnixNano(),
		FsId:       &runtimeapi.FilesystemIdentifier{Mountpoint: w.Mountpoint},
		UsedBytes:  value(w.Bytes),
		InodesUsed: value(w.Inodes),
	}
}

// defaultInterface is the one that carries the pod's own address.
const defaultInterface = "eth0"

// networkUsage is nil for a sandbox without a network of its own, and for one that
// has no links. A kubelet takes it for granted that there is a default interface.
func networkUsage(f *engine.Figures) *runtimeapi.NetworkUsage {
	if len(f.Links) == 0 {
		return nil
	}
	first := f.Links[0].Name
	for _, link := range f.Links {
		if link.Name == defaultInterface {
			first = defaultInterface
		}
	}
	usage := &runtimeapi.NetworkUsage{Timestamp: f.At.UnixNano()}
	for _, link := range f.Links {
		one := &runtimeapi.NetworkInterfaceUsage{
			Name:    link.Name,
			RxBytes: value(link.RxBytes), RxErrors: value(link.RxErrors),
			TxBytes: value(link.TxBytes), TxErrors: value(link.TxErrors),
		}
		if link.Name == first {
			usage.DefaultInterface = one
		} else {
			usage.Interfaces = append(usage.Interfaces, one)
		}
	}
	return usage
}

func psi(p *engine.Pressure) *runtimeapi.PsiStats {
	if p == nil {
		return nil
	}
	return &runtimeapi.PsiStats{Full: stall(p.Full), Some: stall(p.Some)}
}

func stall(s engine.Stall) *runtimeapi.PsiData {
	return &runtimeapi.PsiData{Total: s.Total, Avg10: s.Avg10, Avg60: s.Avg60, Avg300: s.Avg300}
}

func value(v uint64) *runtimeapi.UInt64Value { return &runtimeapi.UInt64Value{Value: v} }
