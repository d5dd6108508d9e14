package systemd

// KubeadmKubeletUnit is the unit of a kubelet as kubeadm has it: its flags are in kubeadm-flags.env.
const KubeadmKubeletUnit = `[Service]
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
ExecStart=/usr/bin/kubelet --config=/var/lib/kubelet/config.yaml $KUBELET_KUBEADM_ARGS
Restart=always
RestartSec=1
KillMode=process

[Install]
WantedBy=multi-user.target
`

// KubeadmKubeletConfig is the configuration of that kubelet. It runs static pods, without an API server.
const KubeadmKubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: systemd
staticPodPath: /etc/kubernetes/manifests
podCIDR: 10.88.7.0/24
failCgroupV1: false
authentication: {anonymous: {enabled: false}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
`

// HelloStaticPod runs the demo image.
const HelloStaticPod = `apiVersion: v1
kind: Pod
metadata: {name: hello, namespace: default}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: web, image: "berth.run/hello:demo", imagePullPolicy: IfNotPresent, command: [serve, --listen, ":8081"]}
`
