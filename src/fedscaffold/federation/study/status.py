class StatusBoard:
    def __init__(self, folder, plan):
        pass

    def phase(self, name):
        pass

    def error(self, point):
        pass

    def watch(self):
        from contextlib import nullcontext

        return nullcontext()
