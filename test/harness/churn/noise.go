package churn

// noise is a kind of error line that is expected.
type noise struct {
	// log is "kubelet", "berth" or "supervisor".
	log string
	// match is an expression for the line without its time.
	match string
	// after are the disruptions that cause it, for half a minute; none if it may come at any time.
	after []string
	// why it is not an error of berth.
	why string
}

// expected are all error lines that may come.
func expected() []noise {
	starts := append(kubeletAway(), firstStart)
	supervisorAway := []string{supervisorKilled, supervisorUpgrade, keeperKilled, bothKilled}
	return []noise{
		// Errors of a kubelet that starts.
		{"kubelet", `server.go:\d+\] "Failed to set rlimit on max file handles"`, starts, "the host grants no higher limits"},
		{"kubelet", `"Failed to ensure process in container with oom score"`, nil, "the host has no CAP_SYS_RESOURCE, nor a namespace of pid 1 that can be read"},
		{"kubelet", `"Error getting the current node from lister"`, starts, "the node registers only now"},
		{"kubelet", `"Unable to register mirror pod because node is not registered yet"`, starts, "the node registers only now"},
		{"kubelet", `"Failed to get node when trying to set owner ref to the node lease"`, starts, "the node registers only now"},
		{"kubelet", `failed to get node info: node \\"node0\\" not found`, starts, "the node registers only now"},
		{"kubelet", `Failed to initialize CSINode`, starts, "the node registers only now"},
		{"kubelet", `"Skipping pod synchronization" err="\[?(container runtime status check may not have completed yet|PLEG is not healthy: pleg has yet to be successful)`, starts, "it has not listed pods yet"},
		{"kubelet", `"Failed to read data from checkpoint" err="checkpoint is not found"`, starts, "it has no device plugins"},
		{"kubelet", `no imagefs label for configured runtime`, starts, "its cAdvisor knows labels of images' file systems of CRI-O only; CRI reports it"},
		{"kubelet", `oomparser.go:\d+\] exiting analyzeLines`, starts, "the kernel's log cannot be read from its first line on"},
		{"kubelet", `"Error updating node status, will retry" .*not found`, starts, "the node registers only now"},
		{"kubelet", `"Unable to record event \(will not retry!\)" err="broadcaster already stopped"`, kubeletAway(), "it is being stopped"},

		// Errors that the test causes.
		{"kubelet", `code = Unavailable|berth.sock: (connect|read): |error reading from server: EOF`, berthAway(), "berth is away"},
		{"kubelet", `connection ended \(`, supervisorAway, "a container was being made or started when the supervisor ended; the kubelet asks again"},
		{"kubelet", `"ExecSync cmd from runtime service failed" .*it did not begin before the supervisor's death`, supervisorAway, "a container was being probed when the supervisor ended; the kubelet asks again"},
		{"kubelet", `context canceled"`, kubeletAway(), "the test stops it"},
		{"kubelet", `object \\?"churn\\?"/\\?"[a-z.-]+\\?" not registered`, starts, "it has not seen the object yet that a volume is made of, and tries again"},
		{"kubelet", `detected running containers after a successful KillPod, CRI violation`, kubeletAway(), "a kubelet that follows events takes a pod for absent until it has listed it: it has killed nothing, and finds the pod then"},
		{"kubelet", `is ready and has containers \(`, kubeletAway(), "it has not listed yet the pod that it asks for"},
		{"kubelet", `65536 ids from ` + lastIDs + ` on are more than there are`, nil, "it has given a pod a range of ids that the kernel does not have"},
		{"kubelet", `"Missing actuated pod level resource record"`, nil, "it has not written down yet what it gave the pod"},
		{"kubelet", `"Failed to ensure image" err="ImageInspectError"`, berthAway(), "berth is away; the line before says so"},
		{"kubelet", `"Failed to stop sandbox" podSandboxID`, berthAway(), "berth is away; the line before says so"},
		{"kubelet", `"PreStop hook failed" err="(Get .* connection refused|rpc error: code = FailedPrecondition .* is exited, not running)`, kubeletAway(), "a kubelet that was stopped while it stopped a container runs its hook again, and the container has ended"},
		{"supervisor", `"the supervisor ended; starting it again"`, []string{supervisorKilled, bothKilled}, "the keeper reports that it was killed"},
		{"berth", `msg="sandbox is no longer ready" .*its own process ended with code 137"`, kubeletAway(), "a kubelet that starts kills what is in the cgroup of a pod that was deleted by force meanwhile"},
		{"kubelet", `with CrashLoopBackOff: `, nil, "a container waits for the restart that its scenario ordered"},

		// Errors of a kubelet that looks for what it or another component has just removed.
		{"kubelet", `"ContainerStatus from runtime service failed" err="rpc error: code = NotFound`, nil, "it asks for a container that it has removed meanwhile"},
		{"kubelet", `"Failed to get status for pod" err="pods .* is forbidden: .* no relationship found between node`, nil, "the pod is deleted, so that its node may not see it any more"},
		{"kubelet", `failed to fetch token: pod \\*"deleted-early-\d+\\*" not found`, nil, "the pod was deleted by force before its volumes were there"},
		{"kubelet", `failed to fetch token: pods? \\*"[a-z-]+-\d+\\*" not found`, kubeletAway(), "the pod was deleted while it was away"},
		{"kubelet", `"Failed to update status for pod" .* not found" pod=`, nil, "the pod is deleted"},
		{"kubelet", `"failed to read memory cgroup (config|limits) for the pod" .* no such (file or directory|device)`, nil, "it reads its own cgroup of a pod that has just ended"},
		{"kubelet", `"ExecSync cmd from runtime service failed" err="rpc error: code = Canceled desc = context canceled"`, nil, "it gives up a probe of a container that it stops"},
		{"kubelet", `"ExecSync cmd from runtime service failed" .*( is exited, not running|: it is (ending|exited): wrong state|code = NotFound)`, nil, "it probes a container that has just ended"},
		{"kubelet", `"Failed to remove container" .* code = NotFound`, nil, "somebody else in it has removed the container meanwhile"},
		{"kubelet", `"Failed to remove container log dead symlink" .* no such file or directory`, nil, "somebody else in it has removed the link with its container meanwhile"},
		{"kubelet", `Failed to watch directory "/sys/fs/cgroup/`, nil, "its cAdvisor wants to watch a cgroup that has gone already"},
		{"kubelet", `cannot reopen container log: container .* is exited, not running`, nil, "the container has just ended whose log it rotates; it takes the rotation back"},
		{"kubelet", `"(ReopenContainerLog from runtime service failed|Failed to rotate log for container)" .*it is not running: wrong state`, nil, "the container has just ended whose log it rotates; it takes the rotation back"},
		{"kubelet", `"Partial failure issuing cadvisor.ContainerInfoV2"`, nil, "its cAdvisor has no figures yet of a new cgroup, or none any more of an old one"},

		{"kubelet", `(readdirent|could not read directory) [^ ]*/volumes.*: no such file or directory`, nil, "it reads a directory of a pod's volumes that it removes"},

		// Errors of a busy host.
		{"kubelet", `"Housekeeping took longer than expected"`, nil, "the test shares the host's processors with others"},
	}
}
