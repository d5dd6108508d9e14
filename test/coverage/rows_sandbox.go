package main

// sandboxRows are the fields of PodSandboxConfig.
func sandboxRows() []row {
	const sandboxes = "TestFieldsOfSandboxes"
	return []row{
		{name: "metadata{name,uid,namespace,attempt}", test: sandboxes, covers: []string{"metadata.{name,uid,namespace,attempt}"}},
		{name: "hostname", test: "TestFieldMounts", covers: []string{"hostname"}},
		{name: "log_directory", test: sandboxes, covers: []string{"log_directory"}},
		{name: "dns_config", test: sandboxes, covers: []string{"dns_config.{servers,searches,options}"}},
		{name: "port_mappings{proto,ports,host_ip}", test: sandboxes, covers: []string{"port_mappings.{protocol,container_port,host_port,host_ip}"}},
		{name: "labels / annotations", test: sandboxes, covers: []string{"labels", "annotations"}},
		{name: "linux.cgroup_parent", test: sandboxes, covers: []string{"linux.cgroup_parent"}},
		{name: "sysctls", test: "TestFieldMounts", covers: []string{"linux.sysctls"}},
		{
			name: "overhead, resources", test: sandboxes, covers: []string{"linux.{overhead,resources}." + resourceFields},
			note: "The resources are the limits of the sandbox's cgroup if the request has no cgroup_parent. The creator of a cgroup_parent, a kubelet, sets its limits itself: " +
				"they are not these sums, which omit containers without a limit. UpdatePodSandboxResources limits both. Verbose status has the resources, and the overhead, " +
				"which the kubelet has already added to its limits.",
		},
		{name: "sec.namespace_options net/pid/ipc", test: sandboxes, covers: []string{security + "namespace_options.{network,pid,ipc,target_id}"}},
		{
			name: "userns_options", test: "TestFieldUsernsOptions", whole: true,
			covers: []string{security + "namespace_options.userns_options." + usernsFields}, needs: []string{userNamespaces},
		},
		{
			name: "selinux, run_as_user/group, readonly_rootfs, supplemental_groups(+policy)", test: sandboxes,
			covers: []string{security + "{selinux_options.{user,role,type,level},run_as_user,run_as_group,readonly_rootfs,supplemental_groups,supplemental_groups_policy}"},
			needs:  []string{seLinux},
			note: "A sandbox has a process only if its containers share a PID namespace. For any request this process is an unprivileged user without capabilities, on a root file " +
				"system that is read-only and empty.",
		},
		{
			name: "privileged, seccomp, apparmor", test: sandboxes,
			covers: []string{security + "{privileged,seccomp.{profile_type,localhost_ref},apparmor.{profile_type,localhost_ref},seccomp_profile_path}"},
			needs:  []string{seccomp, appArmor, appArmorParser},
			note: "privileged allows privileged containers in the sandbox. berth refuses invalid profiles, and those that the host cannot enforce. The sandbox's own process, if there " +
				"is one, has berth's default filter and AppArmor profile, for any request.",
		},
	}
}
