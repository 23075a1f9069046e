"""Examples of the client.

suffixsvc serve --data ./shared --listen unix:./suffixsvc.sock
python -m suffixsvc_client.examples.two_processes unix:./suffixsvc.sock
"""
