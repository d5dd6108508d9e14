package cadvisor

import (
	"fmt"
	"strconv"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine"
)

// diskMetrics are of the file system that a container writes to. It is measured from time to
// time: each sample has the time of its measurement.
func diskMetrics() []metric {
	disk := func(name, help string, value func(*engine.Written) uint64) metric {
		return metric{name, help, runtimeapi.MetricType_GAUGE, []string{"device"}, func(s *subject) []sample {
			if s.Written == nil {
				return nil
			}
			return []sample{{value(s.Written), []string{s.Written.Device}, s.Written.At}}
		}}
	}
	return []metric{
		disk("container_fs_usage_bytes", "What it wrote to its root filesystem, in bytes.", func(w *engine.Written) uint64 { return w.Bytes }),
		disk("container_fs_limit_bytes", "Size of the filesystem that it writes to, in bytes.", func(w *engine.Written) uint64 { return w.Capacity }),
		disk("container_fs_inodes_total", "Files that the filesystem can hold.", func(w *engine.Written) uint64 { return w.InodesTotal }),
		disk("container_fs_inodes_free", "Files that the filesystem can still take.", func(w *engine.Written) uint64 { return w.InodesFree }),
	}
}

// deviceMetrics are of the I/O to block devices.
func deviceMetrics() []metric {
	device := func(name, help string, value func(*engine.DeviceIO) uint64) metric {
		return metric{name, help, runtimeapi.MetricType_COUNTER, []string{"device"}, func(s *subject) []sample {
			all := make([]sample, 0, len(s.Details.Devices))
			for i := range s.Details.Devices {
				d := &s.Details.Devices[i]
				all = append(all, sample{value: value(d), labels: []string{nameOf(d)}})
			}
			return all
		}}
	}
	return []metric{
		device("container_fs_reads_bytes_total", "Bytes read from the device.", func(d *engine.DeviceIO) uint64 { return d.ReadBytes }),
		device("container_fs_reads_total", "Reads from the device.", func(d *engine.DeviceIO) uint64 { return d.Reads }),
		device("container_fs_writes_bytes_total", "Bytes written to the device.", func(d *engine.DeviceIO) uint64 { return d.WriteBytes }),
		device("container_fs_writes_total", "Writes to the device.", func(d *engine.DeviceIO) uint64 { return d.Writes }),
		{
			"container_blkio_device_usage_total", "Bytes to and from the device, by operation.", runtimeapi.MetricType_COUNTER,
			[]string{"device", "major", "minor", "operation"},
			func(s *subject) []sample {
				var all []sample
				for i := range s.Details.Devices {
					d := &s.Details.Devices[i]
					name, major, minor := nameOf(d), strconv.FormatUint(d.Major, 10), strconv.FormatUint(d.Minor, 10)
					all = append(all,
						sample{value: d.ReadBytes, labels: []string{name, major, minor, "Read"}},
						sample{value: d.WriteBytes, labels: []string{name, major, minor, "Write"}},
						sample{value: d.DiscardBytes, labels: []string{name, major, minor, "Discard"}})
				}
				return all
			},
		},
	}
}

// nameOf returns the name of a device, or the numbers of a device without a node: two samples
// with equal labels would make the whole page invalid.
func nameOf(d *engine.DeviceIO) string {
	if d.Device != "" {
		return d.Device
	}
	return fmt.Sprintf("%d:%d", d.Major, d.Minor)
}

// networkMetrics are of a sandbox's links.
func networkMetrics() []metric {
	link := func(name, help string, value func(*engine.Link) uint64) metric {
		return metric{name, help, runtimeapi.MetricType_COUNTER, []string{"interface"}, func(s *subject) []sample {
			all := make([]sample, 0, len(s.Links))
			for i := range s.Links {
				all = append(all, sample{value: value(&s.Links[i]), labels: []string{s.Links[i].Name}})
			}
			return all
		}}
	}
	return []metric{
		link("container_network_receive_bytes_total", "Bytes received.", func(l *engine.Link) uint64 { return l.RxBytes }),
		link("container_network_receive_packets_total", "Packets received.", func(l *engine.Link) uint64 { return l.RxPackets }),
		link("container_network_receive_packets_dropped_total", "Packets received and dropped.", func(l *engine.Link) uint64 { return l.RxDropped }),
		link("container_network_receive_errors_total", "Errors while receiving.", func(l *engine.Link) uint64 { return l.RxErrors }),
		link("container_network_transmit_bytes_total", "Bytes sent.", func(l *engine.Link) uint64 { return l.TxBytes }),
		link("container_network_transmit_packets_total", "Packets sent.", func(l *engine.Link) uint64 { return l.TxPackets }),
		link("container_network_transmit_packets_dropped_total", "Packets to be sent and dropped.", func(l *engine.Link) uint64 { return l.TxDropped }),
		link("container_network_transmit_errors_total", "Errors while sending.", func(l *engine.Link) uint64 { return l.TxErrors }),
	}
}
