from twisted.application.service import ServiceMaker

# Twisted resolves the dotted names when a role is chosen, not when it lists them.
core = ServiceMaker("dsched core", "dsched.tap.CoreRole", "Run a dsched core.", "dsched-core")
worker = ServiceMaker("dsched worker", "dsched.tap.WorkerRole", "Run a dsched worker.", "dsched-worker")
