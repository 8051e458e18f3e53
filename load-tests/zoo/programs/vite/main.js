document.body.append('hello of Vite');
